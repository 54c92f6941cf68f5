"""What the manager does for all: schedules, deadlines and the upkeep of the tables."""
