//! The modules of a crate as they are written, without what only tests see.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, Visibility};

use crate::has_word;

/// A module's path below the crate's root.
pub type ModulePath = Vec<String>;

/// One module.
#[derive(Default)]
pub struct Module {
    pub is_public: bool,
    /// The features that it and the modules around it need.
    pub cfg: Vec<Attribute>,
    pub items: Vec<Item>,
}

/// All modules of a crate.
pub type Modules = BTreeMap<ModulePath, Module>;

/// Reads the crate whose library is `src/lib.rs` in this folder.
pub fn modules(folder: &Path) -> Modules {
    let mut found = Modules::new();
    let root = folder.join("src/lib.rs");
    let items = parse(&root);
    let module = Module { is_public: true, cfg: Vec::new(), items: Vec::new() };
    add(Vec::new(), module, items, &folder.join("src"), &mut found);
    found
}

fn parse(file: &Path) -> Vec<Item> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).items
}

/// `below`: the folder of the files of its modules.
fn add(path: ModulePath, mut module: Module, items: Vec<Item>, below: &Path, found: &mut Modules) {
    for item in items {
        let Item::Mod(inner) = item else {
            let is_exported = |attr: &Attribute| attr.path().is_ident("macro_export");
            let exports = matches!(&item, Item::Macro(rules) if rules.attrs.iter().any(is_exported));
            assert!(!exports, "{path:?}: this list does not show exported macros");
            module.items.push(item);
            continue;
        };
        if is_left_out(&inner.attrs) {
            continue;
        }
        let name = inner.ident.to_string();
        let mut inner_path = path.clone();
        inner_path.push(name.clone());
        let cfg = needs(&module.cfg, &inner.attrs);
        let is_public = matches!(inner.vis, Visibility::Public(_));
        let folder = below.join(&name);
        let items = match inner.content {
            Some((_, items)) => items,
            None => parse(&file_of(below, &name)),
        };
        add(inner_path, Module { is_public, cfg, items: Vec::new() }, items, &folder, found);
    }
    found.insert(path, module);
}

fn file_of(below: &Path, name: &str) -> PathBuf {
    let plain = below.join(format!("{name}.rs"));
    if plain.exists() { plain } else { below.join(name).join("mod.rs") }
}

/// What an item needs to exist: what the module around it needs, and its own conditions.
pub fn needs(module: &[Attribute], attrs: &[Attribute]) -> Vec<Attribute> {
    let mut needs = module.to_vec();
    needs.extend(attrs.iter().filter(|attr| attr.path().is_ident("cfg") && !module.contains(attr)).cloned());
    needs
}

/// Whether users of the crate never see it: tests, injected bugs, and what the documentation hides.
pub fn is_left_out(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let Ok(list) = attr.meta.require_list() else { return false };
        let text = list.tokens.to_string();
        let tests_or_bugs = has_word(&text, "test") || text.contains("bug-injection") && !text.starts_with("not");
        (attr.path().is_ident("cfg") && tests_or_bugs) || (attr.path().is_ident("doc") && text == "hidden")
    })
}

#[test]
fn items_of_tests_and_injected_bugs_are_left_out() {
    let attrs = |text: &str| syn::parse_str::<syn::ItemMod>(&format!("{text} mod a;")).expect("a module").attrs;
    for left_out in ["#[cfg(test)]", "#[cfg(feature = \"bug-injection\")]", "#[doc(hidden)]"] {
        assert!(is_left_out(&attrs(left_out)), "{left_out}");
    }
    for kept in ["", "#[cfg(feature = \"kube\")]", "#[cfg(not(feature = \"bug-injection\"))]", "#[doc = \"test\"]"] {
        assert!(!is_left_out(&attrs(kept)), "{kept}");
    }
}
