//! The walk of a promotion is short, and its numbers can be counted again.

mod hops;

use std::collections::{BTreeMap, BTreeSet};

use self::hops::hops;
use super::{report, texts, top};

const FOLDER: &str = "docs/walks";
/// The most exchanges, and the most files in which they are decided: a newcomer follows no more.
const MAX_ROWS: usize = 20;
const MAX_FILES: usize = 25;
/// The most lines of these files, a little more than today: they do not grow unnoticed.
const MAX_LINES: usize = 6300;
/// How far the lines that the walk states may be from those of today.
const LINES_TOLERANCE: usize = 100;
/// The column that names the file in which a row is decided.
const DECIDED_IN: &str = "decided in";

fn document(path: &str) -> String {
    texts(|file| file == path).remove(0).text
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// The rows of the table: each number, with its cell in a column.
fn rows<'a>(text: &'a str, column: &str) -> BTreeMap<usize, &'a str> {
    let mut tables = text.lines().filter(|line| line.starts_with('|')).map(cells);
    let at = tables.find_map(|head| head.iter().position(|cell| *cell == column)).expect("the table has this column");
    tables.filter_map(|row| Some((row.first()?.parse::<usize>().ok()?, *row.get(at)?))).collect()
}

/// The targets of the links in a cell.
fn targets(cell: &str) -> impl Iterator<Item = &str> {
    cell.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// The number in front of these words, with or without commas.
fn number_before(text: &str, words: &str) -> Option<usize> {
    let (before, _) = text.split_once(words)?;
    let number = before.rsplit(|c: char| !c.is_ascii_digit() && c != ',').next()?;
    number.replace(',', "").parse().ok()
}

/// The actors of the tree, a family by its beginning: `peer-`.
fn actors(architecture: &str) -> BTreeSet<&str> {
    let tree = architecture.lines().filter_map(|line| line.split_once("─ "));
    tree.filter_map(|(_, actor)| actor.split([' ', '<']).next()).filter(|name| !name.is_empty()).collect()
}

#[test]
fn promotion_walk_keeps_its_budget() {
    let walk = document("docs/walks/promotion.md");
    let (rows, mut files, mut wrong) = (rows(&walk, DECIDED_IN), BTreeSet::new(), Vec::new());
    for (row, cell) in &rows {
        if targets(cell).next().is_none() {
            wrong.push(format!("row {row} names no file in which it is decided"));
        }
        for target in targets(cell) {
            let file = top().join(FOLDER).join(target).canonicalize().ok().filter(|file| file.is_file());
            match file {
                Some(file) => {
                    files.insert(file);
                }
                None => wrong.push(format!("row {row}: {target} is not a file")),
            }
        }
    }
    let texts = files.iter().map(|file| std::fs::read_to_string(file).expect("a source is text"));
    let lines = texts.map(|text| text.lines().count()).sum::<usize>();
    for (what, count, most) in
        [("rows", rows.len(), MAX_ROWS), ("files", files.len(), MAX_FILES), ("lines", lines, MAX_LINES)]
    {
        if count > most {
            wrong.push(format!("{count} {what}, at most {most} are allowed"));
        }
    }
    let stated = (number_before(&walk, " rows and **"), number_before(&walk, " files**"));
    if stated != (Some(rows.len()), Some(files.len())) {
        wrong.push(format!("it has {} rows and {} files, and states {stated:?}", rows.len(), files.len()));
    }
    let stated = number_before(&walk, " lines**");
    if stated.is_none_or(|stated| stated.abs_diff(lines) > LINES_TOLERANCE) {
        wrong.push(format!("these files have {lines} lines, and it states {stated:?}"));
    }
    let bound = number_before(&walk, " lines in these files");
    if bound != Some(MAX_LINES) {
        wrong.push(format!("at most {MAX_LINES} lines are allowed, and it states {bound:?}"));
    }
    report("the walk of a promotion is short enough to be followed", &wrong);
}

#[test]
fn promotion_walk_counts_its_hops() {
    let walk = document("docs/walks/promotion.md");
    let (architecture, gaps) = (document("docs/ARCHITECTURE.md"), document("docs/gaps.md"));
    let (hops, rows, actors) = (hops(&walk), rows(&walk, DECIDED_IN), actors(&architecture));
    let mut wrong = Vec::new();
    if !hops.keys().eq(rows.keys()) {
        wrong.push("the rows of the list and of the table differ".to_owned());
    }
    for name in hops.values().flatten() {
        let actor = name.split_once('/').map_or("", |(_, actor)| actor);
        let family = actor.split_once('-').map_or("", |(family, _)| family);
        if !actors.contains(actor) && !actors.contains(format!("{family}-").as_str()) {
            wrong.push(format!("{name} is not an actor of the tree"));
        }
    }
    let count: usize = hops.values().map(Vec::len).sum();
    for (document, stated) in
        [("walk", number_before(&walk, " hops**")), ("gaps", number_before(&gaps, " actors** ([by"))]
    {
        if stated != Some(count) {
            wrong.push(format!("the {document} states {stated:?}, and the list has {count}"));
        }
    }
    report("the hops of a promotion are those of the list", &wrong);
}

#[test]
fn walk_is_parsed() {
    let walk = "- row 1: `h/api`\n- row 2: none; the api waits\n\n| # | decided in | what |\n|---|---|---|\n\
                | 1 | [a.rs](../a.rs), [b](b) | x |\n| 2 | | y |\nin **3 hops**";
    assert_eq!(hops(walk), BTreeMap::from([(1, vec!["h/api"]), (2, vec![])]));
    let found = rows(walk, DECIDED_IN);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2]);
    assert_eq!((targets(found[&1]).collect::<Vec<_>>(), targets(found[&2]).count()), (vec!["../a.rs", "b"], 0));
    assert_eq!((number_before(walk, " hops**"), number_before(walk, " rows")), (Some(3), None));
    assert_eq!(number_before("some **6,100 lines**", " lines**"), Some(6100));
    assert_eq!(actors("└─ peer-<node>   x\n   ├─ mesh\n").into_iter().collect::<Vec<_>>(), ["mesh", "peer-"]);
}
