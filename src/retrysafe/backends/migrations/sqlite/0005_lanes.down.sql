DROP INDEX retrysafe_outbox_troubles_until;
DROP INDEX retrysafe_outbox_lane;
