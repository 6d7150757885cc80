//! The public API of each published crate is a committed text, `docs/api/CRATE.txt`, and every change of it is announced in the crate's change
//! log.
//!
//! Read from the sources, because the compiler's own description of a crate needs an unstable toolchain. So the text has the types as they are
//! written. Not in it: attributes of serialization, which the golden tests of the wire cover, and items that a macro makes, of which it has the
//! macro's call.

mod exports;
mod signature;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use syn::{Attribute, Item, ItemImpl, Type};

use self::exports::{Definition, Exports, attrs, exports};
use self::source::{ModulePath, Modules, is_left_out, modules};
use crate::published::published;
use crate::{report, top};

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
    let implementations = Implementations::of(&all, &names, is_listed);

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
            items.extend(implementations.of_type(&name));
        }
        let _infallible = writeln!(text, "\n## {module}\n");
        for line in exports.foreign.iter().chain(&exports.unknown).chain(&again) {
            let _infallible = writeln!(text, "{line}");
        }
        text.push_str(&shown_items(items));
    }
    let others = implementations.others();
    if !others.is_empty() {
        let _infallible = writeln!(text, "\n## Implementations for types of others\n");
        text.push_str(&shown_items(others));
    }
    text
}

fn shown_items(items: Vec<Item>) -> String {
    prettyplease::unparse(&syn::File { shebang: None, attrs: Vec::new(), items })
}

/// The implementations of a crate that users see, by the name of their type.
struct Implementations {
    of_types: BTreeMap<String, Vec<Item>>,
    others: Vec<Item>,
}

impl Implementations {
    fn of(all: &Modules, exported: &BTreeSet<String>, is_listed: impl Fn(&ModulePath) -> bool) -> Self {
        let local: BTreeSet<String> = all.values().flat_map(|module| &module.items).filter_map(any_name).collect();
        let is_hidden = |name: &String| local.contains(name) && !exported.contains(name);
        let mut found = Self { of_types: BTreeMap::new(), others: Vec::new() };
        for (path, module) in all {
            for item in &module.items {
                let Item::Impl(item) = item else { continue };
                let hidden_trait =
                    item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()).map(|s| s.ident.to_string());
                let of_type = type_name(item);
                if is_left_out(&item.attrs)
                    || hidden_trait.as_ref().is_some_and(is_hidden)
                    || of_type.as_ref().is_some_and(is_hidden)
                {
                    continue;
                }
                let cfg: Vec<Attribute> = module.cfg.iter().filter(|a| !item.attrs.contains(a)).cloned().collect();
                let Some(shown) = signature::of_impl(item, &cfg) else { continue };
                match of_type.filter(|name| local.contains(name)) {
                    Some(name) => found.of_types.entry(name).or_default().push(shown),
                    None if is_listed(path) => found.others.push(shown),
                    None => {}
                }
            }
        }
        found
    }
    fn of_type(&self, name: &str) -> Vec<Item> {
        self.of_types.get(name).cloned().unwrap_or_default()
    }
    fn others(self) -> Vec<Item> {
        self.others
    }
}

/// The last name of the type that is implemented for.
fn type_name(item: &ItemImpl) -> Option<String> {
    let Type::Path(path) = &*item.self_ty else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// The name of any type or trait, public or not.
fn any_name(item: &Item) -> Option<String> {
    match item {
        Item::Enum(item) => Some(item.ident.to_string()),
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Trait(item) => Some(item.ident.to_string()),
        Item::Type(item) => Some(item.ident.to_string()),
        Item::Union(item) => Some(item.ident.to_string()),
        _ => None,
    }
    .filter(|_| !is_left_out(attrs(item)))
}

/// A short digest (FNV-1a): whether two texts are the same one, and no protection against anyone.
fn digest(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[test]
fn public_api_is_as_committed_and_announced() {
    let mut violations = Vec::new();
    for package in published() {
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
        if newest.is_none_or(|line| !line.contains(&mark)) {
            violations.push(format!(
                "{log}: the newest line with an API says what changed for users, and ends in `{mark}` (docs/crates.md says which changes need which version)"
            ));
        }
    }
    report("a change of a published crate's API is deliberate and announced", &violations);
}

#[test]
fn api_text_has_signatures_and_nothing_private() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |file: &str, text: &str| {
        let path = folder.path().join("src").join(file);
        std::fs::create_dir_all(path.parent().expect("in src")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write(
        "lib.rs",
        "mod a; pub mod b; mod hidden { pub struct H; } pub use self::a::{A, T, made}; pub use serde::Serialize;\n\
         pub fn f(x: u8) -> u8 { x } fn g() {} #[cfg(test)] mod tests; pub const C: u8 = 7;\n",
    );
    write(
        "a.rs",
        "/// Doc.\n#[derive(Clone)] pub struct A { pub x: u8, y: u8 } impl A { pub fn m(&self) {} fn p(&self) {} }\n\
         pub trait T { const K: u8; fn r(&self); fn d(&self) { todo() } } impl T for A { const K: u8 = 1; fn r(&self) {} }\n\
         trait Private {} impl Private for A {} impl Clone for Foreign { fn clone(&self) -> Self {} }\n\
         words! { /// About.\n made => 1 }\n",
    );
    write("b/mod.rs", "pub use super::a::A; pub enum E { V(u8) }\n");
    let text = described("some-crate", folder.path(), &[]);
    let expected = "
## some_crate

pub use serde::Serialize;
#[derive(Clone)]
pub struct A {
    pub x: u8,
    private_fields: _,
}
impl A {
    pub fn m(&self) {}
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
    V(u8),
}

## Implementations for types of others

impl Clone for Foreign {}
";
    assert_eq!(text.strip_prefix(HEADER), Some(expected));
}
