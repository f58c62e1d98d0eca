//! Keys and column texts of a field, derived from the tokens of its type.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::{GenericArgument, PathArguments, Type};

/// Types that are passed and stored by value as keys.
const VALUES: [&str; 17] = [
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "bool",
    "IpAddr",
    "Ipv4Addr",
    "Ipv6Addr",
    "IpNetwork",
    "Ipv4Network",
    "Ipv6Network",
];

/// Smart pointers that keys and columns see through.
const POINTERS: [&str; 4] = ["Arc", "Box", "Rc", "Cow"];

/// The key type of an index.
pub(crate) enum Key<'t> {
    /// Any string: the key is `str`.
    Text,
    /// Any list of bytes: the key is `[u8]`.
    Bytes,
    /// A small type that is copied.
    Value(&'t Type),
    /// Any other.
    Other(&'t Type),
}

impl<'t> Key<'t> {
    pub(crate) fn of(ty: &'t Type) -> Self {
        let inner = target(ty);
        match inner {
            Type::Slice(slice) if is(&slice.elem, &["u8"]) => Key::Bytes,
            _ if is(inner, &["str", "String"]) => Key::Text,
            _ if is(inner, &["Vec"]) && argument(inner, 0).is_some_and(|item| is(item, &["u8"])) => {
                Key::Bytes
            }
            _ if is_value(ty) => Key::Value(bare(ty)),
            _ => Key::Other(bare(ty)),
        }
    }
}

fn is_value(ty: &Type) -> bool {
    match bare(ty) {
        Type::Array(array) => is(&array.elem, &["u8"]),
        ty if is(ty, &["Option"]) => argument(ty, 0).is_some_and(is_value),
        ty => is(ty, &VALUES),
    }
}

/// A collection type with its item types.
pub(crate) enum Items<'t> {
    /// Zero or one item.
    Option(&'t Type),
    /// Ordered items.
    List(&'t Type),
    /// Items in arbitrary order.
    Unordered(&'t Type),
    /// Keys with values, in order of the keys.
    Map(&'t Type, &'t Type),
    /// Keys with values, in arbitrary order.
    UnorderedMap(&'t Type),
}

impl<'t> Items<'t> {
    pub(crate) fn of(ty: &'t Type) -> Option<Self> {
        if is(ty, &["Option"]) {
            return argument(ty, 0).map(Items::Option);
        }
        let ty = target(ty);
        match ty {
            Type::Slice(slice) => return Some(Items::List(&slice.elem)),
            Type::Array(array) => return Some(Items::List(&array.elem)),
            _ => {}
        }
        let first = argument(ty, 0)?;
        Some(match ty {
            ty if is(ty, &["Vec", "VecDeque", "BTreeSet", "Set"]) => Items::List(first),
            ty if is(ty, &["SmallVec", "ArrayVec"]) => match first {
                Type::Array(array) => Items::List(&array.elem),
                item => Items::List(item),
            },
            ty if is(ty, &["HashSet"]) => Items::Unordered(first),
            ty if is(ty, &["BTreeMap", "Map"]) => Items::Map(first, argument(ty, 1)?),
            ty if is(ty, &["HashMap"]) => Items::UnorderedMap(first),
            _ => return None,
        })
    }
}

/// Returns the code of a column's text. `place` is an expression, a reference to a value of this type.
pub(crate) fn text(ty: &Type, place: TokenStream) -> TokenStream {
    let span = place_of(ty);
    match Items::of(ty) {
        Some(Items::Option(item)) => {
            let item = text(item, quote_spanned!(span=> item));
            quote_spanned!(span=> match #place {
                ::std::option::Option::Some(item) => #item,
                ::std::option::Option::None => ::std::string::String::new(),
            })
        }
        Some(Items::List(item)) => {
            let item = text(item, quote_spanned!(span=> item));
            quote_spanned!(span=> _statedb::__private::joined((#place).iter().map(|item| #item)))
        }
        Some(Items::Map(key, value)) => {
            let (key, value) =
                (text(key, quote_spanned!(span=> key)), text(value, quote_spanned!(span=> value)));
            quote_spanned!(span=> _statedb::__private::joined(
                (#place).iter().map(|(key, value)| ::std::format!("{}={}", #key, #value))
            ))
        }
        Some(Items::Unordered(_) | Items::UnorderedMap(_)) | None => {
            quote_spanned!(span=> _statedb::__private::column(#place))
        }
    }
}

/// Returns the span for errors about a type. It resolves as the macro's own code, so that lints do not apply to it.
pub(crate) fn place_of(ty: &Type) -> Span {
    ty.span().resolved_at(Span::mixed_site())
}

/// Returns the type without parentheses and the invisible groups of macros.
fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        ty => ty,
    }
}

/// Returns the target of a reference or a smart pointer.
fn target(ty: &Type) -> &Type {
    match bare(ty) {
        Type::Reference(reference) => target(&reference.elem),
        ty if is(ty, &POINTERS) => argument(ty, 0).map_or(ty, target),
        ty => ty,
    }
}

/// Whether the last segment of a path is one of these.
fn is(ty: &Type, names: &[&str]) -> bool {
    match bare(ty) {
        Type::Path(path) => {
            path.path.segments.last().is_some_and(|last| names.iter().any(|name| last.ident == name))
        }
        _ => false,
    }
}

/// Returns a generic argument of a type.
fn argument(ty: &Type, index: usize) -> Option<&Type> {
    let Type::Path(path) = bare(ty) else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.map(bare).nth(index)
}
