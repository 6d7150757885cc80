//! Tests of the kit: above all that it fails, and says why.

mod actors;
mod examples;
mod harnesses;
mod probes;

use std::panic::AssertUnwindSafe;

/// The text of a failing test, in virtual time.
fn failure(test: impl Future<Output = ()>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime is made");
    let ended = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(test)));
    let panic = ended.expect_err("the test fails");
    *panic.downcast::<String>().expect("assertions with values have texts of their own")
}
