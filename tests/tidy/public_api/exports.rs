//! What a crate exports: which definitions are reachable, and under which paths.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Attribute, Ident, Item, UseTree, Visibility};

use super::source::{Module, ModulePath, Modules, is_left_out, needs};
use crate::has_word;

/// A definition: its module, and its place in it.
pub type Definition = (ModulePath, usize);

/// What is public in one module.
#[derive(Default)]
pub struct Exports {
    /// Definitions by name, with what each needs to exist.
    pub items: BTreeMap<(String, Definition), Vec<Attribute>>,
    /// Public names from other crates, as they are written.
    pub foreign: BTreeSet<String>,
}

/// The attributes, the visibility and the name of an item that has all three.
fn named(item: &Item) -> Option<(&[Attribute], &Visibility, &Ident)> {
    Some(match item {
        Item::Const(item) => (&item.attrs[..], &item.vis, &item.ident),
        Item::Enum(item) => (&item.attrs[..], &item.vis, &item.ident),
        Item::Fn(item) => (&item.attrs[..], &item.vis, &item.sig.ident),
        Item::Static(item) => (&item.attrs[..], &item.vis, &item.ident),
        Item::Struct(item) => (&item.attrs[..], &item.vis, &item.ident),
        Item::Trait(item) => (&item.attrs[..], &item.vis, &item.ident),
        Item::Type(item) => (&item.attrs[..], &item.vis, &item.ident),
        Item::Union(item) => (&item.attrs[..], &item.vis, &item.ident),
        _ => return None,
    })
}

/// The name of a definition, public or not. `None`: it has no name, or users never see it.
pub fn name_of(item: &Item) -> Option<String> {
    named(item).filter(|(attrs, ..)| !is_left_out(attrs)).map(|(_, _, ident)| ident.to_string())
}

/// The same, only if it is public where it is defined.
fn public_name(item: &Item) -> Option<String> {
    name_of(item).filter(|_| named(item).is_some_and(|(_, vis, _)| matches!(vis, Visibility::Public(_))))
}

/// A call of a macro at the level of a module: it may define what the module exports.
fn is_macro_call(item: &Item) -> bool {
    matches!(item, Item::Macro(call) if call.ident.is_none() && !is_left_out(&call.attrs))
}

/// The exports of a module, re-exports included.
pub fn exports(all: &Modules, path: &ModulePath) -> Exports {
    let mut found = Exports::default();
    collect(all, path, &mut found, &mut BTreeSet::new());
    found
}

fn collect(all: &Modules, path: &ModulePath, found: &mut Exports, seen: &mut BTreeSet<ModulePath>) {
    let Some(module) = all.get(path) else { return };
    if !seen.insert(path.clone()) {
        return;
    }
    for (place, item) in module.items.iter().enumerate() {
        if let Some(name) = public_name(item) {
            found.items.insert((name, (path.clone(), place)), module.cfg.clone());
        } else if is_macro_call(item) {
            found.items.insert(("macro".to_owned(), (path.clone(), place)), module.cfg.clone());
        } else if let Item::Use(exported) = item
            && matches!(exported.vis, Visibility::Public(_))
            && !is_left_out(&exported.attrs)
        {
            for (names, renamed) in flat(&exported.tree) {
                follow(all, path, &names, renamed.as_deref(), &exported.attrs, found, seen);
            }
        }
    }
}

/// Adds what one name of a `pub use` means. Panics where it would have to leave something out.
fn follow(
    all: &Modules,
    at: &ModulePath,
    names: &[String],
    renamed: Option<&str>,
    attrs: &[Attribute],
    found: &mut Exports,
    seen: &mut BTreeSet<ModulePath>,
) {
    let (last, before) = names.split_last().expect("a path has a name");
    let written = names.join("::");
    // A name without a path is another crate's.
    let module = (!before.is_empty()).then(|| module_of(all, at, before)).flatten();
    let Some(module) = module else {
        let cfg: String = needs(&all[at].cfg, attrs)
            .iter()
            .filter_map(|attr| Some(format!("#[cfg({})] ", attr.meta.require_list().ok()?.tokens)))
            .collect();
        let renamed = renamed.map_or(String::new(), |name| format!(" as {name}"));
        found.foreign.insert(format!("{cfg}pub use {written}{renamed};"));
        return;
    };
    if last == "*" {
        return collect(all, &module, found, seen);
    }
    assert!(
        renamed.is_none(),
        "{written}: an item of this crate must keep its name, by which its implementations are found"
    );
    let own = definitions(&all[&module], last);
    let definitions: Vec<Definition> = if own.is_empty() {
        // Re-exported there from elsewhere.
        let there = exports(all, &module).items.into_keys().filter(|(name, _)| name == last);
        there.map(|(_, definition)| definition).collect()
    } else {
        own.into_iter().map(|place| (module.clone(), place)).collect()
    };
    assert!(
        !definitions.is_empty(),
        "{written}: neither an item nor in a macro's call; a module must be public where it is"
    );
    for definition in definitions {
        let needs = needs(&all[&definition.0].cfg, attrs);
        found.items.insert((last.clone(), definition), needs);
    }
}

/// The definitions with a name, or the macro calls that contain it.
fn definitions(module: &Module, name: &str) -> Vec<usize> {
    let places = |wanted: &dyn Fn(&Item) -> bool| {
        let found = module.items.iter().enumerate().filter(|(_, item)| wanted(item));
        found.map(|(place, _)| place).collect::<Vec<_>>()
    };
    let named = places(&|item| public_name(item).as_deref() == Some(name));
    if !named.is_empty() {
        return named;
    }
    places(&|item| {
        let Item::Macro(call) = item else { return false };
        is_macro_call(item) && has_word(&call.mac.tokens.to_string(), name)
    })
}

/// The module of this crate that a path leads to.
fn module_of(all: &Modules, at: &ModulePath, path: &[String]) -> Option<ModulePath> {
    let (mut module, rest) = match path.split_first() {
        None => (at.clone(), path),
        Some((first, rest)) => match first.as_str() {
            "crate" => (Vec::new(), rest),
            "self" => (at.clone(), rest),
            "super" => (at[..at.len().saturating_sub(1)].to_vec(), rest),
            _ => (at.clone(), path),
        },
    };
    module.extend(rest.iter().cloned());
    all.contains_key(&module).then_some(module)
}

/// Each name of a `use` with its path, and what it is renamed to.
fn flat(tree: &UseTree) -> Vec<(Vec<String>, Option<String>)> {
    let below = |name: String, tree: &UseTree| {
        let names = flat(tree).into_iter();
        names.map(|(names, renamed)| ([vec![name.clone()], names].concat(), renamed)).collect()
    };
    match tree {
        UseTree::Path(path) => below(path.ident.to_string(), &path.tree),
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], None)],
        UseTree::Rename(name) => vec![(vec![name.ident.to_string()], Some(name.rename.to_string()))],
        UseTree::Glob(_) => vec![(vec!["*".to_owned()], None)],
        UseTree::Group(group) => group.items.iter().flat_map(flat).collect(),
    }
}
