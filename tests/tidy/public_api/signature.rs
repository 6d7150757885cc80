//! Items without what is not part of a signature: bodies, values, private fields, comments.

use proc_macro2::{Group, TokenStream, TokenTree};
use syn::{
    Attribute, Block, Expr, Field, Fields, FnArg, ImplItem, Item, ItemImpl, Pat, Signature, TraitItem, Visibility,
    parse_quote,
};

use super::source::is_left_out;

/// Attributes that users notice.
const KEPT: [&str; 6] = ["cfg", "derive", "deprecated", "must_use", "non_exhaustive", "repr"];

fn keep(attrs: &mut Vec<Attribute>) {
    attrs.retain(|attr| KEPT.iter().any(|kept| attr.path().is_ident(kept)));
    // The text of a `must_use` is a comment.
    for attr in attrs.iter_mut().filter(|attr| attr.path().is_ident("must_use")) {
        *attr = parse_quote!(#[must_use]);
    }
}

fn empty() -> Block {
    parse_quote!({})
}

/// `mut` before a parameter is the body's business.
fn without_mut(signature: &mut Signature) {
    for input in &mut signature.inputs {
        if let FnArg::Typed(argument) = input
            && let Pat::Ident(name) = &mut *argument.pat
        {
            name.mutability = None;
        }
    }
}

fn any_value() -> Expr {
    parse_quote!(_)
}

/// A definition as its users see it, with what else it needs to exist.
pub fn of(item: &Item, cfg: &[Attribute]) -> Item {
    let mut item = item.clone();
    let own = match &mut item {
        Item::Const(item) => {
            *item.expr = any_value();
            &mut item.attrs
        }
        Item::Static(item) => {
            *item.expr = any_value();
            &mut item.attrs
        }
        Item::Fn(item) => {
            *item.block = empty();
            without_mut(&mut item.sig);
            &mut item.attrs
        }
        Item::Struct(item) => {
            hide_private(&mut item.fields);
            &mut item.attrs
        }
        Item::Enum(item) => {
            for variant in &mut item.variants {
                keep(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| keep(&mut field.attrs));
            }
            &mut item.attrs
        }
        Item::Trait(item) => {
            item.items.retain(|inner| !is_left_out(trait_attrs(inner)));
            item.items.iter_mut().for_each(strip_trait_item);
            &mut item.attrs
        }
        Item::Macro(item) => {
            item.mac.tokens = without_comments(item.mac.tokens.clone());
            &mut item.attrs
        }
        Item::Type(item) => &mut item.attrs,
        Item::Union(item) => &mut item.attrs,
        other => panic!("{other:?} has no signature"),
    };
    keep(own);
    let mut needs = cfg.to_vec();
    needs.retain(|attr| !own.contains(attr));
    own.splice(0..0, needs);
    item
}

fn trait_attrs(item: &TraitItem) -> &[Attribute] {
    match item {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// A method with a body is one that implementations may leave out.
fn strip_trait_item(item: &mut TraitItem) {
    match item {
        TraitItem::Const(item) => {
            keep(&mut item.attrs);
            if let Some((_, value)) = &mut item.default {
                *value = any_value();
            }
        }
        TraitItem::Fn(item) => {
            keep(&mut item.attrs);
            without_mut(&mut item.sig);
            if let Some(body) = &mut item.default {
                *body = empty();
            }
        }
        TraitItem::Type(item) => keep(&mut item.attrs),
        _ => {}
    }
}

fn hide_private(fields: &mut Fields) {
    let is_public = |field: &Field| matches!(field.vis, Visibility::Public(_));
    match fields {
        Fields::Named(fields) => {
            let all = fields.named.len();
            fields.named = std::mem::take(&mut fields.named).into_iter().filter(is_public).collect();
            if fields.named.len() < all {
                fields.named.push(parse_quote!(private_fields: _));
            }
        }
        Fields::Unnamed(fields) => {
            for field in fields.unnamed.iter_mut().filter(|field| !is_public(field)) {
                field.ty = parse_quote!(_);
            }
        }
        Fields::Unit => {}
    }
    fields.iter_mut().for_each(|field| keep(&mut field.attrs));
}

/// An implementation as users see it. `None`: it has nothing public.
pub fn of_impl(implementation: &ItemImpl, cfg: &[Attribute]) -> Option<Item> {
    let mut item = implementation.clone();
    keep(&mut item.attrs);
    item.attrs.splice(0..0, cfg.iter().cloned());
    let of_trait = item.trait_.is_some();
    let inner = std::mem::take(&mut item.items);
    item.items = inner.into_iter().filter_map(|inner| strip_impl_item(inner, of_trait)).collect();
    (of_trait || !item.items.is_empty()).then_some(Item::Impl(item))
}

/// Of a trait's implementation only what it chooses: methods are the trait's.
fn strip_impl_item(item: ImplItem, of_trait: bool) -> Option<ImplItem> {
    match item {
        ImplItem::Fn(mut item) => {
            let shown = !of_trait && matches!(item.vis, Visibility::Public(_)) && !is_left_out(&item.attrs);
            keep(&mut item.attrs);
            item.block = empty();
            without_mut(&mut item.sig);
            shown.then_some(ImplItem::Fn(item))
        }
        ImplItem::Const(mut item) => {
            let shown = !of_trait && matches!(item.vis, Visibility::Public(_)) && !is_left_out(&item.attrs);
            keep(&mut item.attrs);
            item.expr = any_value();
            shown.then_some(ImplItem::Const(item))
        }
        ImplItem::Type(mut item) => {
            keep(&mut item.attrs);
            Some(ImplItem::Type(item))
        }
        ImplItem::Macro(item) => (!of_trait).then_some(ImplItem::Macro(item)),
        _ => None,
    }
}

/// Tokens without `#[doc = …]`.
fn without_comments(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let is_comment = |group: &Group| group.stream().into_iter().next().is_some_and(|t| t.to_string() == "doc");
        at += 1;
        match (token, tokens.get(at)) {
            (TokenTree::Punct(hash), Some(TokenTree::Group(group))) if hash.as_char() == '#' && is_comment(group) => {
                at += 1;
            }
            (TokenTree::Group(group), _) => {
                kept.push(Group::new(group.delimiter(), without_comments(group.stream())).into());
            }
            _ => kept.push(token.clone()),
        }
    }
    kept.into_iter().collect()
}
