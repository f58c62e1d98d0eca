//! `ShakuDeps`: the dependencies of a shaku component, known before it is built.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Field, GenericArgument, PathArguments, Result, Type};

use crate::params::fields;

pub(crate) fn shaku_deps(input: DeriveInput) -> Result<TokenStream> {
    let injected = fields(&input)?.iter().filter(|field| is_injected(field));
    let deps = injected.map(dependency).collect::<Result<Vec<_>>>()?;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    Ok(quote! {
        #[automatically_derived]
        impl #generics _hive_shaku::ShakuDeps for #ident #arguments #bounds {
            fn deps() -> ::std::vec::Vec<_hive_shaku::Dep> {
                ::std::vec![#(#deps),*]
            }
        }
    })
}

fn is_injected(field: &Field) -> bool {
    let inject =
        |attr: &syn::Attribute| attr.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("inject"));
    field.attrs.iter().any(|attr| attr.path().is_ident("shaku") && inject(attr))
}

fn dependency(field: &Field) -> Result<TokenStream> {
    let ty = &field.ty;
    if let Some([interface]) = arguments(ty, "Arc").as_deref() {
        return Ok(quote!(_hive_shaku::Dep::one::<#interface>()));
    }
    if let Some([member]) = arguments(ty, "Vec").as_deref()
        && let Some([interface]) = arguments(member, "Arc").as_deref()
    {
        return Ok(quote!(_hive_shaku::Dep::all::<#interface>()));
    }
    if let Some([key, member]) = arguments(ty, "HashMap").as_deref()
        && let Some([interface]) = arguments(member, "Arc").as_deref()
    {
        return Ok(quote!(_hive_shaku::Dep::map::<#key, #interface>()));
    }
    Err(syn::Error::new_spanned(ty, "injected fields are `Arc<I>`, `Vec<Arc<I>>` or `HashMap<K, Arc<I>>`"))
}

/// Returns the type arguments of `Name<A, B>`, independent of the path before the name.
fn arguments(ty: &Type, name: &str) -> Option<Vec<Type>> {
    let Type::Path(path) = ty else { return None };
    let segment = path.path.segments.last().filter(|segment| segment.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    });
    Some(types.collect())
}
