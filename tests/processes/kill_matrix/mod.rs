//! The kill matrix: every kind of actor fails in every way, in a cluster at rest and in one at work.
//!
//! Each cell is held against what is specified (`kinds`): what is to start again does, nothing else does, and nothing that was
//! under way is lost. What was seen makes the table in docs/supervision.md.

mod kinds;
mod look;
mod stage;
mod table;
mod work;

use std::sync::Arc;

use self::kinds::HOWS;
use self::stage::{Outcomes, Stage};
use crate::harness::{alone, share};

/// The thread that starts a cluster's processes keeps them alive.
fn matrix(at_work: bool) -> Outcomes {
    let mut stage = Stage::set(at_work);
    for (name, how) in HOWS {
        stage.column(name, how);
    }
    stage.end()
}

#[test]
#[ignore = "full tier"]
fn the_kill_matrix_is_as_it_is_written_down() {
    let machine = alone();
    let theirs = Arc::clone(&machine);
    let at_work = std::thread::Builder::new().name("at work".to_owned()).spawn(move || {
        share(&theirs);
        matrix(true)
    });
    let at_work = at_work.expect("a thread");
    let at_rest = matrix(false);
    let at_work = at_work.join().expect("what is at work bears it, too");
    table::compare(&at_rest, &at_work);
}
