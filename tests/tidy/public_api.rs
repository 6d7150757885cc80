//! The public API of each published crate is a committed text, `docs/api/CRATE.txt`, and every change of it is announced in the crate's change
//! log.
//!
//! Read from the sources, because the compiler's own description of a crate, which the crates for this build on, needs an unstable toolchain. So
//! the text has the types as they are written. Not in it:
//! - attributes of serialization, which the golden tests of the wire cover;
//! - items that a macro makes, of which it has the macro's call;
//! - what follows from private parts: whether a type is `Send` or `Sync`, and derived bounds.
//!
//! Implementations are found by the last name of their type: two types with one name in a crate show each other's. A form that cannot be shown
//! (an exported macro, an own item exported under another name, a private module made public by `pub use`) panics.

mod exports;
mod signature;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use syn::{Item, ItemImpl, Type};

use self::exports::{Definition, Exports, exports, name_of};
use self::source::{ModulePath, Modules, is_left_out, modules};
use crate::published::published;
use crate::{report, texts, top};

const HEADER: &str = "# The public API, made by `UPDATE=1 cargo test -p muster-tests --test tidy public_api`: bodies and values are left out.\n";

/// The public API of the crate in this folder, of all its modules or only of those that are named.
fn described(name: &str, folder: &Path, only: &[&str]) -> String {
    let all = modules(folder);
    let is_reachable = |path: &ModulePath| (0..=path.len()).all(|end| all[&path[..end]].is_public);
    let is_listed = |path: &ModulePath| only.is_empty() || path.first().is_some_and(|top| only.contains(&top.as_str()));
    let mut public: Vec<&ModulePath> = all.keys().filter(|path| is_reachable(path) && is_listed(path)).collect();
    public.sort_by_key(|path| (path.len(), (*path).clone()));
    let exported: Vec<(&ModulePath, Exports)> = public.into_iter().map(|path| (path, exports(&all, path))).collect();
    let names: BTreeSet<String> =
        exported.iter().flat_map(|(_, exports)| exports.items.keys().map(|(name, _)| name.clone())).collect();
    let (of_types, of_others) = implementations(&all, &names, is_listed);

    let mut text = HEADER.to_owned();
    let mut shown: BTreeMap<Definition, String> = BTreeMap::new();
    for (path, exports) in exported {
        let module = [&[name.replace('-', "_")], path.as_slice()].concat().join("::");
        let mut items = Vec::new();
        let mut again = BTreeSet::new();
        for ((name, definition), cfg) in exports.items {
            if let Some(before) = shown.get(&definition) {
                again.extend((name != "macro").then(|| format!("pub use {before}::{name};")));
                continue;
            }
            shown.insert(definition.clone(), module.clone());
            items.push(signature::of(&all[&definition.0].items[definition.1], &cfg));
            items.extend(of_types.get(&name).into_iter().flatten().cloned());
        }
        let _infallible = writeln!(text, "\n## {module}\n");
        for line in exports.foreign.iter().chain(&again) {
            let _infallible = writeln!(text, "{line}");
        }
        text.push_str(&shown_items(items));
    }
    if !of_others.is_empty() {
        let _infallible = writeln!(text, "\n## Implementations for types of others\n");
        text.push_str(&shown_items(of_others));
    }
    text
}

fn shown_items(items: Vec<Item>) -> String {
    prettyplease::unparse(&syn::File { shebang: None, attrs: Vec::new(), items })
}

/// The implementations of a crate that users see: by the name of their type, and those for types of others.
fn implementations(
    all: &Modules,
    exported: &BTreeSet<String>,
    is_listed: impl Fn(&ModulePath) -> bool,
) -> (BTreeMap<String, Vec<Item>>, Vec<Item>) {
    let local: BTreeSet<String> = all.values().flat_map(|module| &module.items).filter_map(name_of).collect();
    let is_hidden = |name: &String| local.contains(name) && !exported.contains(name);
    let (mut of_types, mut of_others) = (BTreeMap::<String, Vec<Item>>::new(), Vec::new());
    for (path, module) in all {
        for item in &module.items {
            let Item::Impl(implementation) = item else { continue };
            let of_trait = implementation.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            let of_trait = of_trait.map(|segment| segment.ident.to_string());
            let of_type = type_name(implementation);
            if is_left_out(&implementation.attrs) || [&of_trait, &of_type].into_iter().flatten().any(is_hidden) {
                continue;
            }
            let shown = signature::of(item, &module.cfg);
            if matches!(&shown, Item::Impl(inner) if inner.trait_.is_none() && inner.items.is_empty()) {
                continue; // nothing in it is public
            }
            match of_type.filter(|name| local.contains(name)) {
                Some(name) => of_types.entry(name).or_default().push(shown),
                None if is_listed(path) => of_others.push(shown),
                None => {}
            }
        }
    }
    (of_types, of_others)
}

/// The last name of the type that is implemented for.
fn type_name(item: &ItemImpl) -> Option<String> {
    let Type::Path(path) = &*item.self_ty else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// A short digest (FNV-1a): it distinguishes texts, and protects nothing.
fn digest(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[test]
fn public_api_is_as_committed_and_announced() {
    let mut violations = Vec::new();
    let published = published();
    for text in texts(|path| path.starts_with("docs/api/")) {
        if !published.iter().any(|package| text.path == format!("docs/api/{}.txt", package.name)) {
            violations.push(format!("{} is not the API of a published crate", text.path));
        }
    }
    for package in published {
        let text = described(&package.name, &top().join(&package.folder), &package.listed_modules());
        let file = top().join(format!("docs/api/{}.txt", package.name));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(file.parent().expect("in a folder")).expect("the folder is made");
            std::fs::write(&file, &text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        if committed != text {
            let differs = committed.lines().zip(text.lines()).find(|(before, now)| before != now);
            let at = differs.map_or("its end".to_owned(), |(before, now)| format!("{before:?}, now {now:?}"));
            violations.push(format!(
                "docs/api/{}.txt differs, first at {at}: rewrite it with `UPDATE=1 cargo test -p muster-tests --test tidy public_api`",
                package.name
            ));
            continue;
        }
        let log = format!("{}/CHANGELOG.md", package.folder);
        let announced = std::fs::read_to_string(top().join(&log)).unwrap_or_default();
        let mark = format!("(api {})", digest(&text));
        // Newest first: the announcement of a change stands above every older one.
        let newest = announced.lines().find(|line| line.contains("(api "));
        if newest.is_none_or(|line| !line.trim_end().ends_with(&mark)) {
            violations.push(format!(
                "{log}: needs a line at the top that describes the change for users and ends in `{mark}` (docs/crates.md: which changes need which version)"
            ));
        }
    }
    report("a change of a published crate's API is deliberate and announced", &violations);
}

/// A crate of these files below `src`.
fn crate_of(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (file, text) in files {
        let path = folder.path().join("src").join(file);
        std::fs::create_dir_all(path.parent().expect("in src")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    folder
}

#[test]
fn api_text_has_signatures_and_nothing_private() {
    let lib = "mod a; pub mod b; mod hidden { pub struct H; } pub use self::a::{A, T, made}; pub use serde::Serialize;\n\
         #[cfg(feature = \"more\")] pub use serde::Deserialize as De;\n\
         pub fn f(x: u8) -> u8 { x } fn g() {} #[cfg(test)] mod tests; pub const C: u8 = 7;\n";
    let a = "/// Doc.\n#[derive(Clone)] pub struct A { pub x: u8, y: u8 }\n\
         impl A { pub fn m(&mut self) {} pub fn by(mut self, mut n: u8) { n += 1 } fn p(&self) {} }\n\
         pub trait T { const K: u8; fn r(&self); fn d(&self) { todo() } } impl T for A { const K: u8 = 1; fn r(&self) {} }\n\
         trait Private {} impl Private for A {} impl Clone for Foreign { fn clone(&self) -> Self {} }\n\
         words! { /// About.\n made => 1 }\n";
    let b = "pub use super::a::A; pub enum E { #[cfg(feature = \"more\")] V(u8), #[serde(skip)] W }\n";
    let folder = crate_of(&[("lib.rs", lib), ("a.rs", a), ("b/mod.rs", b)]);
    let text = described("some-crate", folder.path(), &[]);
    let expected = "
## some_crate

#[cfg(feature = \"more\")] pub use serde::Deserialize as De;
pub use serde::Serialize;
#[derive(Clone)]
pub struct A {
    pub x: u8,
    private_fields: _,
}
impl A {
    pub fn m(&mut self) {}
    pub fn by(self, n: u8) {}
}
impl T for A {}
pub const C: u8 = _;
pub trait T {
    const K: u8;
    fn r(&self);
    fn d(&self) {}
}
pub fn f(x: u8) -> u8 {}
words! {
    made => 1
}

## some_crate::b

pub use some_crate::A;
pub enum E {
    #[cfg(feature = \"more\")]
    V(u8),
    W,
}

## Implementations for types of others

impl Clone for Foreign {}
";
    assert_eq!(text.strip_prefix(HEADER), Some(expected));
}

#[test]
fn forms_that_the_api_text_cannot_show_are_refused() {
    for (lib, why) in [
        ("mod a { pub struct A; } pub use self::a::A as B;", "must keep its name"),
        ("mod a { pub mod b { pub struct A; } } pub use self::a::b;", "a module must be public where it is"),
        ("#[macro_export] macro_rules! m { () => {} }", "does not show exported macros"),
    ] {
        let folder = crate_of(&[("lib.rs", lib)]);
        let refused = std::panic::catch_unwind(|| described("some-crate", folder.path(), &[])).expect_err(lib);
        let text = refused.downcast_ref::<String>().expect("the text of an assertion");
        assert!(text.contains(why), "{lib}: {text}");
    }
}
