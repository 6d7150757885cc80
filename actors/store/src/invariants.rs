//! What holds of the replicated state after every entry.
