//! Attributes as lists of items, and the errors for unknown ones.

use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Attribute, Ident, LitStr, Meta, Result, Token};

/// One item of an attribute's list.
pub(crate) enum Item {
    /// `"MTU"`
    Text(LitStr),
    /// `unique`, or the beginning of `name = "..."`
    Word(Ident),
}

/// Parses `#[x]`, or `#[x(a, b = .., c(..))]`: passes each item to `take`, which parses the item's value or arguments.
pub(crate) fn each(
    attribute: &Attribute,
    mut take: impl FnMut(Item, ParseStream<'_>) -> Result<()>,
) -> Result<()> {
    match &attribute.meta {
        Meta::Path(_) => Ok(()),
        Meta::NameValue(pair) => {
            let name = pair.path.require_ident()?;
            Err(syn::Error::new_spanned(
                pair,
                format!("write what belongs to it in parentheses: `#[{name}(..)]`"),
            ))
        }
        Meta::List(list) => list.parse_args_with(|input: ParseStream<'_>| {
            while !input.is_empty() {
                let item = match input.peek(LitStr) {
                    true => Item::Text(input.parse()?),
                    false => Item::Word(input.call(Ident::parse_any)?),
                };
                take(item, input)?;
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        }),
    }
}

/// Parses `=` and the value behind it.
pub(crate) fn value<T: syn::parse::Parse>(input: ParseStream<'_>) -> Result<T> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Returns the error for an unknown item of an attribute.
pub(crate) fn unknown(attribute: &str, item: &Item, known: &[&str]) -> syn::Error {
    match item {
        Item::Text(text) => syn::Error::new(text.span(), format!("`#[{attribute}]` takes no text here")),
        Item::Word(word) => {
            let remedy = match nearest(&word.to_string(), known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", known.join(", ")),
            };
            syn::Error::new(word.span(), format!("`#[{attribute}]` knows no `{word}`; {remedy}"))
        }
    }
}

/// Returns the most similar name, if it is within two edits.
pub(crate) fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let distances = names.into_iter().map(|name| (strsim::levenshtein(word, name), name));
    distances.min().filter(|(distance, name)| *distance <= 2 && *distance < name.len()).map(|(_, name)| name)
}
