mod elections;
mod levels;
mod membership;
mod packets;
mod replication;
mod snapshots;
mod storms;
mod world;
