mod elections;
mod membership;
mod packets;
mod replication;
mod snapshots;
mod storms;
mod world;
