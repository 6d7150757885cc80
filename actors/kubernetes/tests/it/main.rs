//! Requests as real clients send them, against the replicated state as it really is: everything but the network.

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
