//! `Object`: a type that a constructor may return bare.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Result};

pub(crate) fn object(input: DeriveInput) -> Result<TokenStream> {
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    Ok(quote! {
        #[automatically_derived]
        impl #generics _hive::Object for #ident #arguments #bounds {}
    })
}
