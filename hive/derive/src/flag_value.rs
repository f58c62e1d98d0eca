//! `FlagValue`: an enum whose variants are the values of an option.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, LitStr, Result, Variant};

pub(crate) fn flag_value(input: DeriveInput) -> Result<TokenStream> {
    let Data::Enum(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "only enums are lists of values"));
    };
    let names: Vec<LitStr> = data.variants.iter().map(name).collect::<Result<_>>()?;
    let Some((last, rest)) = names.split_last() else {
        return Err(Error::new_spanned(&input.ident, "an option needs at least one value"));
    };
    let rest: Vec<String> = rest.iter().map(LitStr::value).collect();
    let expected = match rest.is_empty() {
        true => last.value(),
        false => format!("{} or {}", rest.join(", "), last.value()),
    };
    let zero = &names[0];
    let variants: Vec<_> = data.variants.iter().map(|variant| &variant.ident).collect();
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    Ok(quote! {
        #[automatically_derived]
        impl #generics _hive::config::FlagValue for #ident #arguments #bounds {
            const KIND: _hive::config::Kind = _hive::config::Kind::Parsed(#expected);
            const ZERO: &'static str = #zero;
            fn take(
                value: &_hive::config::Parsed<'_>,
            ) -> ::std::result::Result<Self, ::std::string::String> {
                match value.text() {
                    #(#names => ::std::result::Result::Ok(Self::#variants),)*
                    _ => ::std::result::Result::Err(::std::string::String::new()),
                }
            }
            fn render(&self) -> ::std::string::String {
                ::std::string::String::from(match self {
                    #(Self::#variants => #names,)*
                })
            }
        }
    })
}

/// Returns the text of a variant: that of `#[flag(name = "..")]`, otherwise its name in lower case.
fn name(variant: &Variant) -> Result<LitStr> {
    if !matches!(variant.fields, Fields::Unit) {
        return Err(Error::new_spanned(variant, "a value of an option has no fields"));
    }
    let mut name = LitStr::new(&variant.ident.to_string().to_lowercase(), variant.ident.span());
    for attr in variant.attrs.iter().filter(|attr| attr.path().is_ident("flag")) {
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("name") {
                return Err(meta.error("unknown property; there is name"));
            }
            name = meta.value()?.parse()?;
            Ok(())
        })?;
    }
    Ok(name)
}
