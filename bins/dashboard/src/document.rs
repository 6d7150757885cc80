//! A page as parts that are sent again only where they differ: a stream carries the level of each part, never a sequence of edges, so
//! that a page that missed something is right again with the next whole one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use maud::{Markup, html};
use serde::Serialize;

/// A page.
pub struct Document {
    pub title: String,
    pub parts: Vec<Part>,
}

/// A part of a page, known by its id.
pub enum Part {
    Block(&'static str, Markup),
    Table(Table),
}

/// A table whose rows are sent one by one.
pub struct Table {
    pub id: &'static str,
    pub caption: String,
    pub headings: &'static [&'static str],
    pub rows: Vec<Row>,
    /// What stands in place of no rows.
    pub empty: String,
}

/// A row, known by a key that is unique in its table. The first cell is its heading.
pub struct Row {
    pub key: String,
    pub cells: Vec<Markup>,
}

impl Row {
    /// A row.
    pub fn new(key: impl Into<String>, cells: Vec<Markup>) -> Self {
        Self { key: key.into(), cells }
    }
}

#[cfg(test)]
impl Part {
    fn id(&self) -> &'static str {
        match self {
            Part::Block(id, _) => id,
            Part::Table(table) => table.id,
        }
    }
}

impl Table {
    fn render(&self) -> Markup {
        html! {
            section id=(self.id) {
                div.scrolls tabindex="0" role="region" aria-label=(self.caption) {
                    table {
                        caption { (self.caption) }
                        thead { tr { @for heading in self.headings { th scope="col" { (heading) } } } }
                        tbody id={ (self.id) "-rows" } { @for (id, html) in self.rows() { (row(&id, html)) } }
                    }
                }
            }
        }
    }

    /// Ids and cells of the rows; ids are hashes, because keys may be hostile.
    fn rows(&self) -> Vec<(String, Markup)> {
        if self.rows.is_empty() {
            let cell = html! { td colspan=(self.headings.len()) { (self.empty) } };
            return vec![(format!("{}-none", self.id), cell)];
        }
        let cells = |row: &Row| {
            html! {
                @for (index, cell) in row.cells.iter().enumerate() {
                    @if index == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                }
            }
        };
        self.rows.iter().map(|row| (format!("{}-{:016x}", self.id, hash(&row.key)), cells(row))).collect()
    }

    /// What a page must have of it already to be sent only rows.
    fn frame(&self) -> u64 {
        hash(&(&self.caption, self.headings))
    }
}

/// An id for an element about something whose name may be hostile.
pub fn id_of(key: &str) -> String {
    format!("{:016x}", hash(&key))
}

fn row(id: &str, cells: Markup) -> Markup {
    html! { tr id=(id) { (cells) } }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What is sent to a page that is open.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Patch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The whole page, in place of what there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Elements by id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<(String, String)>,
    /// The rows of tables in order, by the id of the table's body.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<(String, Vec<String>)>,
}

/// What an open page shows.
#[derive(Default)]
pub struct Shown {
    title: String,
    parts: Vec<(&'static str, u64)>,
    blocks: HashMap<&'static str, u64>,
    rows: HashMap<&'static str, Vec<(String, u64)>>,
}

impl Shown {
    /// What must be sent so that the page shows this; `None` if it does already.
    pub fn patch(&mut self, document: &Document) -> Option<Patch> {
        let frame = |part: &Part| match part {
            Part::Block(id, _) => (*id, 0),
            Part::Table(table) => (table.id, table.frame()),
        };
        let parts: Vec<_> = document.parts.iter().map(frame).collect();
        let mut patch = Patch::default();
        if self.title != document.title {
            self.title.clone_from(&document.title);
            patch.title = Some(document.title.clone());
        }
        let whole = self.parts != parts;
        if whole {
            *self = Self { title: std::mem::take(&mut self.title), parts, ..Self::default() };
        }
        for part in &document.parts {
            match part {
                Part::Block(id, html) => {
                    let now = hash(&html.0);
                    if self.blocks.insert(id, now) != Some(now) {
                        patch.set.push(((*id).to_owned(), section(id, html).into_string()));
                    }
                }
                Part::Table(table) => self.table(table, &mut patch),
            }
        }
        if whole {
            (patch.set, patch.rows) = (Vec::new(), Vec::new());
            patch.page = Some(document.render().into_string());
        }
        (patch != Patch::default()).then_some(patch)
    }

    fn table(&mut self, table: &Table, patch: &mut Patch) {
        let former = self.rows.remove(table.id).unwrap_or_default();
        let known: HashMap<&String, u64> = former.iter().map(|(id, hash)| (id, *hash)).collect();
        let mut shown = Vec::with_capacity(table.rows.len());
        for (id, cells) in table.rows() {
            let now = hash(&cells.0);
            if known.get(&id) != Some(&now) {
                patch.set.push((id.clone(), row(&id, cells).into_string()));
            }
            shown.push((id, now));
        }
        if !former.iter().map(|(id, _)| id).eq(shown.iter().map(|(id, _)| id)) {
            let order = shown.iter().map(|(id, _)| id.clone()).collect();
            patch.rows.push((format!("{}-rows", table.id), order));
        }
        self.rows.insert(table.id, shown);
    }
}

fn section(id: &str, html: &Markup) -> Markup {
    html! { section id=(id) { (html) } }
}

impl Document {
    /// The whole page.
    pub fn render(&self) -> Markup {
        html! {
            @for part in &self.parts {
                @match part { Part::Block(id, html) => (section(id, html)), Part::Table(table) => (table.render()) }
            }
        }
    }

    /// The part of this id.
    #[cfg(test)]
    pub fn part(&self, id: &str) -> String {
        let found = self.parts.iter().find(|part| part.id() == id);
        match found {
            Some(Part::Block(_, html)) => html.0.clone(),
            Some(Part::Table(table)) => table.render().into_string(),
            None => panic!("the page has no part {id}: {:?}", self.parts.iter().map(Part::id).collect::<Vec<_>>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a browser does with patches, on a model of the page: parts in order, each a block or the rows of a table.
    #[derive(Debug, Default, PartialEq)]
    struct Browser {
        page: String,
    }

    impl Browser {
        fn apply(&mut self, patch: Patch) {
            if let Some(page) = patch.page {
                self.page = page;
            }
            for (body, order) in &patch.rows {
                let open = format!("<tbody id=\"{body}\">");
                let from = self.page.find(&open).unwrap() + open.len();
                let to = from + self.page[from..].find("</tbody>").unwrap();
                let rows: Vec<String> = self.page[from..to].split_inclusive("</tr>").map(str::to_owned).collect();
                let of = |id: &String| rows.iter().find(|row| row.starts_with(&format!("<tr id=\"{id}\">"))).cloned();
                let placed: String =
                    order.iter().map(|id| of(id).unwrap_or_else(|| format!("<tr id=\"{id}\"></tr>"))).collect();
                self.page.replace_range(from..to, &placed);
            }
            for (id, html) in patch.set {
                let (tag, end) = if html.starts_with("<tr") { ("tr", "</tr>") } else { ("section", "</section>") };
                let from = self.page.find(&format!("<{tag} id=\"{id}\">")).unwrap();
                let to = from + self.page[from..].find(end).unwrap() + end.len();
                self.page.replace_range(from..to, &html);
            }
        }
    }

    fn document(block: u8, rows: &[(u8, u8)], caption: bool) -> Document {
        let rows = rows
            .iter()
            .map(|(key, value)| Row::new(key.to_string(), vec![html! { (key) }, html! { (value) }]))
            .collect();
        let caption = if caption { "one" } else { "other" }.to_owned();
        let table = Table { id: "t", caption, headings: &["A", "B"], rows, empty: "none".to_owned() };
        Document { title: block.to_string(), parts: vec![Part::Block("b", html! { (block) }), Part::Table(table)] }
    }

    #[test]
    fn only_what_differs_is_sent() {
        let mut shown = Shown::default();
        let first = shown.patch(&document(1, &[(1, 1), (2, 1)], true)).unwrap();
        assert!(first.page.is_some() && first.set.is_empty());
        assert_eq!(shown.patch(&document(1, &[(1, 1), (2, 1)], true)), None);
        let patch = shown.patch(&document(1, &[(1, 1), (2, 9)], true)).unwrap();
        assert_eq!((patch.set.len(), patch.rows.len(), patch.page), (1, 0, None));
        let patch = shown.patch(&document(1, &[(2, 9), (3, 1)], true)).unwrap();
        assert_eq!((patch.set.len(), patch.rows.len()), (1, 1));
        assert!(
            shown.patch(&document(1, &[(2, 9)], false)).unwrap().page.is_some(),
            "another caption is another table"
        );
    }

    proptest! {
        #[test]
        fn patched_page_equals_a_page_drawn_anew(
            pages in prop::collection::vec((0u8..3, prop::collection::btree_map(0u8..6, 0u8..3, 0..6), any::<bool>(), 0u8..8), 1..12)
        ) {
            let (mut shown, mut browser) = (Shown::default(), Browser::default());
            for (block, rows, reversed, caption) in pages {
                let mut rows: Vec<(u8, u8)> = rows.into_iter().collect();
                if reversed {
                    rows.reverse();
                }
                let document = document(block, &rows, caption > 0);
                if let Some(patch) = shown.patch(&document) {
                    browser.apply(patch);
                }
                prop_assert_eq!(&browser.page, &document.render().into_string());
            }
        }
    }
}
