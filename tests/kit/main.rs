//! The kit, tested: above all that it does fail, and says why.

mod actors;
mod examples;
mod probes;
mod universes;

use std::panic::AssertUnwindSafe;

/// The text with which a test fails, in virtual time.
fn failure(test: impl Future<Output = ()>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime is made");
    let ended = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(test)));
    let panic = ended.expect_err("a test that is to fail");
    *panic.downcast::<String>().expect("assertions with values have texts of their own")
}
