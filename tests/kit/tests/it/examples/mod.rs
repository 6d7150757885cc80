//! The examples of the documentation, as tests.

mod first;
mod script;
mod whole;

#[expect(dead_code, reason = "its `main`; a program of its own otherwise")]
#[path = "../../../examples/crash_points.rs"]
mod crash_points;

#[tokio::test(start_paused = true)]
async fn balance_survives_a_crash_at_every_point() {
    let points = crash_points::deposits_at_every_point().await;
    assert_eq!(points, 3 * 4 + 2, "before and after each message, and each slot; and as it stops");
}

#[test]
fn first_page_shows_the_first_example() {
    let (_, code) = include_str!("first.rs").split_once("\n\n").expect("its first line says what it is");
    assert!(include_str!("../../../README.md").contains(code), "copy tests/it/examples/first.rs into README.md");
}
