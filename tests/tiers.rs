//! Prints at the end of the quick tier what it left out. It is a test target because cargo runs those of the last package last.

fn main() {
    // With arguments the caller chose a tier or a test, or lists the tests.
    if std::env::args_os().len() > 1 {
        return;
    }
    println!(
        "\nThat was the quick tier. The full tier has every process scenario, the kill matrix, chaos and thousands of simulated runs:\n\n    \
         cargo test --workspace --no-fail-fast -- --include-ignored\n\n\
         tests/OVERVIEW.md says what is in which tier.\n"
    );
}
