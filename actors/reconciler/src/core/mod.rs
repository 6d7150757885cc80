//! What a node decides about reconcilers: which ones it could run, whether it campaigns to run one, what it does while it runs one, which view of it
//! counts, and how far a participant has come. None of it is safe by itself, nor must it be: the cluster checks every step when it is applied.

pub mod admission;
pub mod campaign;
pub mod eligibility;
pub mod groups;
pub mod record;
pub mod retry;
pub mod run;
pub mod views;
