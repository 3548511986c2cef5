DROP TABLE retrysafe_steps;
