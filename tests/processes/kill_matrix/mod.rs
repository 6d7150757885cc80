//! The kill matrix: every kind of actor fails in every way, in an idle cluster and in one at work.
//!
//! Each cell is compared with the specification (`kinds`): what should restart does, nothing else does, and no work in
//! progress is lost. The observations form the table in docs/supervision.md.

mod kinds;
mod snapshot;
mod stage;
mod table;
mod work;

use std::sync::Arc;

use self::kinds::FAILURE_MODES;
use self::stage::{Outcomes, Stage};
use crate::harness::{exclusive_use, share};

/// The thread that starts a cluster's processes keeps them alive.
fn matrix(at_work: bool) -> Outcomes {
    let mut stage = Stage::set(at_work);
    for (name, how) in FAILURE_MODES {
        stage.column(name, how);
    }
    stage.end()
}

#[test]
#[ignore = "full tier"]
fn kill_matrix_matches_the_document() {
    let machine = exclusive_use();
    let theirs = Arc::clone(&machine);
    let at_work = std::thread::Builder::new().name("at work".to_owned()).spawn(move || {
        share(&theirs);
        matrix(true)
    });
    let at_work = at_work.expect("a thread");
    let settled_picture = matrix(false);
    let at_work = at_work.join().expect("the cluster at work passes");
    table::compare(&settled_picture, &at_work);
}
