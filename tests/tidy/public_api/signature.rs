//! Items without what is not part of a signature: bodies, values, private fields, comments.

use proc_macro2::{Group, TokenStream, TokenTree};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Expr, Field, Fields, ImplItem, ImplItemConst, Item, ItemConst, ItemImpl, ItemStatic, ItemStruct,
    ItemTrait, Macro, PatIdent, Receiver, TraitItem, TraitItemConst, Visibility, parse_quote,
};

use super::source::is_left_out;

/// Attributes that users notice.
const KEPT: [&str; 6] = ["cfg", "derive", "deprecated", "must_use", "non_exhaustive", "repr"];

/// An item as its users see it, with what else it needs to exist. Of an implementation without a trait nothing may remain.
pub fn of(item: &Item, cfg: &[Attribute]) -> Item {
    let mut item = item.clone();
    AsSeen { needs: cfg.to_vec() }.visit_item_mut(&mut item);
    item
}

/// Takes away what users do not see.
struct AsSeen {
    /// What the item needs beside its own attributes. They are visited first, and take it.
    needs: Vec<Attribute>,
}

impl VisitMut for AsSeen {
    fn visit_attributes_mut(&mut self, attrs: &mut Vec<Attribute>) {
        attrs.retain(|attr| KEPT.iter().any(|kept| attr.path().is_ident(kept)));
        // The text of a `must_use` is a comment.
        for attr in attrs.iter_mut().filter(|attr| attr.path().is_ident("must_use")) {
            *attr = parse_quote!(#[must_use]);
        }
        let mut needs = std::mem::take(&mut self.needs);
        needs.retain(|need| !attrs.contains(need));
        attrs.splice(0..0, needs);
    }
    /// A method with a body in a trait is one that implementations may leave out.
    fn visit_block_mut(&mut self, block: &mut Block) {
        block.stmts.clear();
    }
    /// `mut` before a parameter is the body's business.
    fn visit_pat_ident_mut(&mut self, parameter: &mut PatIdent) {
        parameter.mutability = None;
    }
    fn visit_receiver_mut(&mut self, receiver: &mut Receiver) {
        if receiver.reference.is_none() {
            receiver.mutability = None;
        }
    }
    fn visit_item_const_mut(&mut self, item: &mut ItemConst) {
        *item.expr = any_value();
        visit_mut::visit_item_const_mut(self, item);
    }
    fn visit_item_static_mut(&mut self, item: &mut ItemStatic) {
        *item.expr = any_value();
        visit_mut::visit_item_static_mut(self, item);
    }
    fn visit_item_struct_mut(&mut self, item: &mut ItemStruct) {
        hide_private(&mut item.fields);
        visit_mut::visit_item_struct_mut(self, item);
    }
    fn visit_item_trait_mut(&mut self, item: &mut ItemTrait) {
        item.items.retain(|inner| !is_left_out(trait_attrs(inner)));
        visit_mut::visit_item_trait_mut(self, item);
    }
    fn visit_trait_item_const_mut(&mut self, item: &mut TraitItemConst) {
        if let Some((_, value)) = &mut item.default {
            *value = any_value();
        }
        visit_mut::visit_trait_item_const_mut(self, item);
    }
    fn visit_item_impl_mut(&mut self, item: &mut ItemImpl) {
        let of_trait = item.trait_.is_some();
        item.items.retain(|inner| is_shown(inner, of_trait));
        visit_mut::visit_item_impl_mut(self, item);
    }
    fn visit_impl_item_const_mut(&mut self, item: &mut ImplItemConst) {
        item.expr = any_value();
        visit_mut::visit_impl_item_const_mut(self, item);
    }
    fn visit_macro_mut(&mut self, call: &mut Macro) {
        call.tokens = without_comments(std::mem::take(&mut call.tokens));
    }
}

fn any_value() -> Expr {
    parse_quote!(_)
}

fn trait_attrs(item: &TraitItem) -> &[Attribute] {
    match item {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// Of a trait's implementation users see only the types that it chooses: methods are the trait's.
fn is_shown(item: &ImplItem, of_trait: bool) -> bool {
    let is_public = |vis: &Visibility, attrs: &[Attribute]| {
        !of_trait && matches!(vis, Visibility::Public(_)) && !is_left_out(attrs)
    };
    match item {
        ImplItem::Fn(item) => is_public(&item.vis, &item.attrs),
        ImplItem::Const(item) => is_public(&item.vis, &item.attrs),
        ImplItem::Type(_) => true,
        ImplItem::Macro(_) => !of_trait,
        _ => false,
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
