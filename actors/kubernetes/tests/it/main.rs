//! Requests as real clients send them, against the real replicated state: everything except the network.

mod applies;
mod clients;
mod events;
mod guards;
mod patches;
mod protocol;
mod random;
mod reads;
mod watches;
mod world;
mod writes;
