//! The examples of the documentation, as tests.

mod first;
mod points;
mod script;
mod whole;

#[test]
fn first_page_shows_the_first_example() {
    let (_, code) = include_str!("first.rs").split_once("\n\n").expect("its first line says what it is");
    assert!(include_str!("../../../README.md").contains(code), "copy tests/it/examples/first.rs into README.md");
}
