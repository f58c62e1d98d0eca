//! The path to the library in generated code.
//!
//! Generated code uses the library by a local alias, so that a crate may re-export the library and its derives under
//! another path: `#[hive(crate = "facade::hive")]`, as in serde.

use proc_macro2::TokenStream;
use quote::{ToTokens as _, format_ident, quote};
use syn::{Attribute, LitStr, Path, Result};

/// A library that generated code refers to.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    /// The name of the crate and of the attribute; the alias is this with an underscore in front.
    pub(crate) name: &'static str,
}

impl Library {
    /// Returns the code with the alias in scope. An invalid path is an error in addition to the code, with the usual path.
    pub(crate) fn scope(self, attributes: &[Attribute], code: TokenStream) -> TokenStream {
        let (name, alias) = (format_ident!("{}", self.name), format_ident!("_{}", self.name));
        let (path, error) = match self.path(attributes) {
            Ok(path) => (path, None),
            Err(error) => (None, Some(error.into_compile_error())),
        };
        let path = path.map_or_else(|| quote!(::#name), Path::into_token_stream);
        quote! {
            #error
            const _: () = {
                use #path as #alias;
                #code
            };
        }
    }

    /// Returns the path of `#[hive(crate = "..")]`, if there is one.
    fn path(self, attributes: &[Attribute]) -> Result<Option<Path>> {
        let mut path = None;
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident(self.name)) {
            attribute.parse_nested_meta(|meta| {
                if !meta.path.is_ident("crate") {
                    return Err(meta.error("unknown property; there is crate"));
                }
                path = Some(meta.value()?.parse::<LitStr>()?.parse_with(Path::parse_mod_style)?);
                Ok(())
            })?;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;
    use crate::{HIVE, SHAKU, config, flag_value, object, params, shaku};

    #[test]
    fn no_derive_uses_the_library_by_a_fixed_path() {
        let of =
            |library: Library, input: syn::DeriveInput, with: fn(syn::DeriveInput) -> Result<TokenStream>| {
                let attributes = input.attrs.clone();
                library.scope(&attributes, with(input).unwrap()).to_string()
            };
        let parts: syn::DeriveInput = parse_quote! {
            #[hive(crate = "facade::inner")]
            struct Parts { a: u32, b: Text }
        };
        let options: syn::DeriveInput = parse_quote! {
            #[hive(crate = "facade::inner")]
            #[config(check = Options::check)]
            struct Options {
                #[flag(default = "30s")]
                a: Duration,
                #[flag(default = Mode::One)]
                b: Mode,
                #[flag(parse = "a name", default = "x")]
                c: Name,
                d: u32,
            }
        };
        let values: syn::DeriveInput = parse_quote! {
            #[hive(crate = "facade::inner")]
            enum Mode { One, Two }
        };
        let component: syn::DeriveInput = parse_quote! {
            #[hive_shaku(crate = "facade::shaku")]
            struct Component { #[shaku(inject)] a: Arc<dyn A>, #[shaku(inject)] b: Vec<Arc<dyn A>> }
        };
        let placeholder = |input| Ok(config::placeholder(&input));
        let generated = [
            of(HIVE, parts.clone(), params::params),
            of(HIVE, parts.clone(), params::outputs),
            of(HIVE, parts, object::object),
            of(HIVE, options.clone(), config::config),
            of(HIVE, options, placeholder),
            of(HIVE, values, flag_value::flag_value),
            of(SHAKU, component, shaku::shaku_deps),
        ];
        for code in generated {
            assert!(
                code.contains("use facade :: inner as _hive ;") || code.contains("use facade :: shaku as"),
                "{code}"
            );
            assert!(!code.contains(":: hive"), "{code}");
        }
    }

    #[test]
    fn an_invalid_path_is_an_error_beside_the_code() {
        let wrong = [parse_quote!(#[hive(crate = "a::<u8>")]), parse_quote!(#[hive(path = "a")])];
        for attribute in wrong {
            let code = HIVE
                .scope(
                    &[attribute],
                    quote!(
                        struct Code;
                    ),
                )
                .to_string();
            assert!(code.contains("compile_error") && code.contains("use :: hive as _hive"), "{code}");
        }
    }
}
