//! The generated code of a table.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, DeriveInput, Field, Ident, Type};

use crate::shape::{Items, Key, place_of, text};
use crate::spec::{Column, IndexField, Spec, ident, library};

/// Returns the code with the library in scope, as `_statedb`: all generated code uses it by this alias.
pub(crate) fn scope(attributes: &[Attribute], code: &TokenStream) -> TokenStream {
    let library = library(attributes);
    quote! {
        const _: () = {
            use #library as _statedb;
            #code
        };
    }
}

pub(crate) fn table(spec: &Spec<'_>) -> TokenStream {
    let (row, name) = (spec.ident, &spec.name);
    let primary_name = spec.primary_name.iter().map(|name| quote!(const PRIMARY: &'static str = #name;));
    let insertable = spec.insertable.iter().map(|span| {
        quote_spanned! {*span=>
            const FROM_VALUE: ::std::option::Option<_statedb::FromValue<Self>> =
                ::std::option::Option::Some(_statedb::__private::from_value::<Self>);
        }
    });
    let key_types = spec.primary.iter().map(|field| key_type(&field.ty));
    let keys = spec.primary.iter().map(|field| key_of(field));
    let (key_type, key) = match spec.primary.len() {
        1 => (quote!(#(#key_types)*), quote!(#(#keys)*)),
        _ => (quote!((#(#key_types),*)), quote!((#(#keys),*))),
    };
    let unique = unique(spec);
    let indexes = indexes(spec);
    let headings = spec.columns.iter().map(|column| &column.heading);
    let cells = spec.columns.iter().map(cell);
    let constants = spec.indexes.iter().map(constant);
    let queries = queries(spec);
    let display = spec.display.then(|| {
        // A macro, because only `statedb` knows which of its features are on.
        quote! {
            _statedb::__display! {
                #[automatically_derived]
                impl _statedb::TableDisplay for #row {
                    #(#insertable)*
                    fn columns() -> &'static [&'static str] {
                        &[#(#headings),*]
                    }
                    fn row(&self) -> ::std::vec::Vec<::std::string::String> {
                        ::std::vec![#(#cells),*]
                    }
                }
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl _statedb::TableSpec for #row {
            const NAME: &'static str = #name;
            #(#primary_name)*
            #unique
            type Key<'a> = #key_type;
            fn key(&self) -> Self::Key<'_> {
                #key
            }
            #indexes
        }

        #display

        // `dead_code`: no crate uses all of the generated queries.
        #[automatically_derived]
        #[allow(dead_code)]
        impl #row {
            #(#constants)*
            #queries
        }
    }
}

/// Returns a placeholder implementation for an invalid struct, so that its users cause no further errors.
pub(crate) fn placeholder(input: &DeriveInput) -> TokenStream {
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let row = &input.ident;
    quote! {
        #[automatically_derived]
        impl #generics _statedb::TableSpec for #row #arguments #bounds {
            const NAME: &'static str = "";
            type Key<'a> = u32;
            fn key(&self) -> u32 {
                ::std::unreachable!()
            }
        }

        _statedb::__display! {
            #[automatically_derived]
            impl #generics _statedb::TableDisplay for #row #arguments #bounds {
                fn columns() -> &'static [&'static str] {
                    ::std::unreachable!()
                }
                fn row(&self) -> ::std::vec::Vec<::std::string::String> {
                    ::std::unreachable!()
                }
            }
        }
    }
}

fn unique(spec: &Spec<'_>) -> TokenStream {
    let more = &spec.more_indexes;
    match spec.indexes.iter().any(|index| index.unique) {
        true => quote!(
            const UNIQUE_SECONDARY: bool = true;
        ),
        false if more.is_empty() => TokenStream::new(),
        false => quote!(const UNIQUE_SECONDARY: bool = #(#more.is_unique())||*;),
    }
}

fn indexes(spec: &Spec<'_>) -> TokenStream {
    if spec.indexes.is_empty() && spec.more_indexes.is_empty() {
        return TokenStream::new();
    }
    let own = spec.indexes.iter().map(|index| constant_name(index.field));
    let more = &spec.more_indexes;
    quote! {
        fn indexes() -> ::std::vec::Vec<_statedb::IndexDef<Self>> {
            ::std::vec![#(Self::#own.def(),)* #(#more.def()),*]
        }
    }
}

fn cell(column: &Column<'_>) -> TokenStream {
    let (field, ty) = (ident(column.field), &column.field.ty);
    match &column.with {
        Some(with) => quote_spanned!(with.span()=> _statedb::__private::shown(&self.#field, #with)),
        None => text(ty, quote!(&self.#field)),
    }
}

/// Returns the type of a field's key, as borrowed from a row.
fn key_type(ty: &Type) -> TokenStream {
    match Key::of(ty) {
        Key::Text => quote!(&'a str),
        Key::Bytes => quote!(&'a [u8]),
        Key::Value(ty) => quote!(#ty),
        Key::Other(ty) => quote!(&'a #ty),
    }
}

fn key_of(field: &Field) -> TokenStream {
    let name = ident(field);
    match Key::of(&field.ty) {
        Key::Text | Key::Bytes => quote!(&*self.#name),
        Key::Value(_) => quote!(self.#name),
        Key::Other(_) => quote!(&self.#name),
    }
}

/// Returns the name of the query function of an index, such as `by_name`.
fn function_name(field: &Field) -> Ident {
    let name = ident(field);
    format_ident!("by_{}", name.unraw(), span = name.span())
}

fn constant_name(field: &Field) -> Ident {
    let name = ident(field);
    format_ident!("BY_{}", name.unraw().to_string().to_uppercase(), span = name.span())
}

/// Returns the key type of an index.
fn indexed<'i>(index: &IndexField<'i>) -> &'i Type {
    match (index.multi, Items::of(&index.field.ty)) {
        (
            true,
            Some(
                Items::Option(item)
                | Items::List(item)
                | Items::Unordered(item)
                | Items::Map(item, _)
                | Items::UnorderedMap(item),
            ),
        ) => item,
        _ => &index.field.ty,
    }
}

fn constant(index: &IndexField<'_>) -> TokenStream {
    let (constant, field, name) = (constant_name(index.field), ident(index.field), &index.name);
    let new = match (index.unique, index.lpm) {
        (false, false) => quote!(new),
        (true, false) => quote!(unique),
        (false, true) => quote!(lpm),
        (true, true) => quote!(unique_lpm),
    };
    let by = indexed(index);
    let span = place_of(by);
    let (key, borrowed) = match Key::of(by) {
        _ if index.lpm => (quote!(_statedb::Lpm<#by>), false),
        Key::Text => (quote_spanned!(span=> str), true),
        Key::Bytes => (quote_spanned!(span=> [u8]), true),
        Key::Value(ty) | Key::Other(ty) => (quote!(#ty), false),
    };
    let add = match (index.multi, borrowed) {
        (false, true) => quote!(keys.add(&*row.#field)),
        (false, false) => quote!(keys.add(&row.#field)),
        (true, borrowed) => {
            let items = match Items::of(&index.field.ty) {
                Some(Items::Map(..) | Items::UnorderedMap(_)) => quote!(keys),
                _ => quote!(iter),
            };
            let key = if borrowed { quote!(&**key) } else { quote!(key) };
            quote!(row.#field.#items().for_each(|key| keys.add(#key)))
        }
    };
    quote! {
        const #constant: _statedb::Index<Self, #key> = _statedb::Index::#new(#name, |row, keys| #add);
    }
}

/// A parameter of a query function, and the key that is built from it.
struct Parameter {
    declared: TokenStream,
    /// The key as a part of the primary key.
    primary: TokenStream,
    /// A reference to the key, as queries of indexes take it.
    reference: TokenStream,
}

fn parameter(field: &Field, ty: &Type) -> Parameter {
    let name = ident(field);
    match Key::of(ty) {
        Key::Text => {
            Parameter { declared: quote!(#name: &str), primary: quote!(#name), reference: quote!(#name) }
        }
        Key::Bytes => {
            Parameter { declared: quote!(#name: &[u8]), primary: quote!(#name), reference: quote!(#name) }
        }
        Key::Value(ty) => {
            Parameter { declared: quote!(#name: #ty), primary: quote!(#name), reference: quote!(&#name) }
        }
        Key::Other(ty) => {
            let borrowed = quote!(::std::borrow::Borrow::<#ty>::borrow(&#name));
            let declared = quote!(#name: impl ::std::borrow::Borrow<#ty>);
            Parameter { declared, primary: borrowed.clone(), reference: borrowed }
        }
    }
}

fn queries(spec: &Spec<'_>) -> TokenStream {
    let mut queries = TokenStream::new();
    let vis = spec.vis;
    match spec.primary.as_slice() {
        [field] => {
            let Parameter { declared, primary, .. } = parameter(field, &field.ty);
            let function = function_name(field);
            let doc = format!("The row with this `{}`.", ident(field).unraw());
            queries.extend(quote! {
                #[doc = #doc]
                #[must_use]
                #vis fn #function(#declared) -> _statedb::Query<Self> {
                    _statedb::Query::primary(#primary)
                }
            });
            if let Key::Text = Key::of(&field.ty) {
                let start = quote!(_statedb::Prefix::primary(start));
                queries.extend(prefix(spec, field, &start));
            }
        }
        fields => queries.extend(by_primary(spec, fields)),
    }
    queries.extend(
        spec.indexes
            .iter()
            .map(|index| if index.lpm { covering(spec, index) } else { by_index(spec, index) }),
    );
    queries
}

/// Returns the query functions of an index with exact matching.
fn by_index(spec: &Spec<'_>, index: &IndexField<'_>) -> TokenStream {
    let (vis, function, constant) = (spec.vis, function_name(index.field), constant_name(index.field));
    let Parameter { declared, reference, .. } = parameter(index.field, indexed(index));
    let name = ident(index.field).unraw();
    let doc = match (index.unique, index.multi) {
        (true, false) => format!("The row with this `{name}`."),
        (true, true) => format!("The row that has this among its `{name}`."),
        (false, false) => format!("The rows with this `{name}`."),
        (false, true) => format!("The rows that have this among their `{name}`."),
    };
    let start = match Key::of(indexed(index)) {
        Key::Text => prefix(spec, index.field, &quote!(Self::#constant.prefix(start))),
        _ => TokenStream::new(),
    };
    quote! {
        #[doc = #doc]
        #[must_use]
        #vis fn #function(#declared) -> _statedb::Query<Self> {
            Self::#constant.query(#reference)
        }
        #start
    }
}

/// Returns the query functions of a longest-prefix-match index.
fn covering(spec: &Spec<'_>, index: &IndexField<'_>) -> TokenStream {
    let (vis, function, constant) = (spec.vis, function_name(index.field), constant_name(index.field));
    let inside = format_ident!("{function}_inside");
    let by = indexed(index);
    let key = quote!(impl _statedb::PrefixKey<Space = <#by as _statedb::PrefixKey>::Space>);
    let name = ident(index.field).unraw();
    let longest = format!("The rows of the longest `{name}` that covers this address or prefix.");
    let all = format!("The rows whose `{name}` is inside this prefix, or the same.");
    quote! {
        #[doc = #longest]
        #[must_use]
        #vis fn #function(covered: #key) -> _statedb::Query<Self> {
            Self::#constant.query(&covered)
        }
        #[doc = #all]
        #[must_use]
        #vis fn #inside(prefix: #key) -> _statedb::Prefix<Self> {
            Self::#constant.prefix(&prefix)
        }
    }
}

fn prefix(spec: &Spec<'_>, field: &Field, query: &TokenStream) -> TokenStream {
    let (vis, function) = (spec.vis, format_ident!("{}_prefix", function_name(field)));
    let doc = format!("The rows whose `{}` starts with this.", ident(field).unraw());
    quote! {
        #[doc = #doc]
        #[must_use]
        #vis fn #function(start: &str) -> _statedb::Prefix<Self> {
            #query
        }
    }
}

/// Returns the query functions of a primary key of several fields: by all of them, and by leading ones.
fn by_primary(spec: &Spec<'_>, fields: &[&Field]) -> TokenStream {
    let vis = spec.vis;
    let parameters: Vec<Parameter> = fields.iter().map(|field| parameter(field, &field.ty)).collect();
    let (declared, keys): (Vec<_>, Vec<_>) = parameters.iter().map(|p| (&p.declared, &p.primary)).unzip();
    let mut queries = quote! {
        /// Queries the row with this primary key.
        #[must_use]
        #vis fn by_primary(#(#declared),*) -> _statedb::Query<Self> {
            _statedb::Query::primary((#(#keys),*))
        }
    };
    // Hygienic, so that no parameter named after a field shadows it.
    let buffer = Ident::new("buffer", Span::mixed_site());
    let taken: Vec<Ident> = spec.indexes.iter().map(|index| function_name(index.field)).collect();
    for count in 1..fields.len() {
        let names: Vec<String> =
            fields[..count].iter().map(|field| ident(field).unraw().to_string()).collect();
        let function = format_ident!("by_{}", names.join("_"), span = ident(fields[0]).span());
        if taken.contains(&function) {
            continue;
        }
        let (declared, keys) = (&declared[..count], &keys[..count]);
        let doc = format!("The rows with this `{}`, in order of the primary key.", names.join("`, `"));
        queries.extend(quote! {
            #[doc = #doc]
            #[must_use]
            #vis fn #function(#(#declared),*) -> _statedb::Prefix<Self> {
                let mut #buffer = _statedb::KeyBuf::new();
                #(_statedb::IndexKey::encode(&#keys, &mut #buffer);)*
                _statedb::Prefix::raw_primary(#buffer)
            }
        });
    }
    queries
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn generated_code_uses_the_library_by_the_path_that_is_given() {
        let input: DeriveInput = parse_quote! {
            #[table(name = "routes", primary(table, dst), insertable, crate = "facade::tables")]
            struct Route {
                table: u32,
                dst: IpNetwork,
                #[index(lpm)]
                cidr: IpNetwork,
                #[index(multi)]
                names: Vec<String>,
                #[column(with = shown)]
                other: Option<u8>,
            }
        };
        let spec = Spec::of(&input).map_err(|error| error.to_string()).unwrap();
        for code in [scope(&input.attrs, &table(&spec)), scope(&input.attrs, &placeholder(&input))] {
            let code = code.to_string();
            assert!(code.contains("use facade :: tables as _statedb ;"), "{code}");
            assert!(!code.contains(":: statedb"), "{code}");
        }
    }
}
