//! Stories of real processes: what an operator does, and what must be true afterwards.

mod absence;
mod actors;
mod by_hand;
mod chaos;
mod commands;
mod credentials;
mod dev;
mod election;
mod example;
mod feature_level;
mod fleet;
mod gates;
mod harness;
mod history;
mod introspection;
mod joining;
mod kill_matrix;
mod leader_loss;
mod losses;
mod migrations;
mod partition;
mod recovery;
mod removal;
mod roles;
mod shutdown;
mod wishes;
