//! `Params` and `Outputs`: structs of parameters and of results.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote};
use syn::{Data, DeriveInput, Fields, Result};

/// Returns the fields of a struct; those of tuple structs are named by their index.
pub(crate) fn fields(input: &DeriveInput) -> Result<&Fields> {
    match &input.data {
        Data::Struct(data) => Ok(&data.fields),
        Data::Enum(_) | Data::Union(_) => {
            Err(syn::Error::new_spanned(&input.ident, "only structs can be derived"))
        }
    }
}

/// Returns the names of arguments that the code of each field uses; they are unused in a struct without fields.
fn arguments_for<const N: usize>(fields: &Fields, names: [&str; N]) -> [TokenStream; N] {
    names.map(|name| match fields.is_empty() {
        true => quote!(_),
        false => Ident::new(name, Span::call_site()).into_token_stream(),
    })
}

pub(crate) fn params(input: DeriveInput) -> Result<TokenStream> {
    let fields = fields(&input)?;
    let names: Vec<_> = fields.members().collect();
    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    let [deps, cx] = arguments_for(fields, ["deps", "cx"]);
    Ok(quote! {
        #[automatically_derived]
        impl #generics _hive::Param for #ident #arguments #bounds {
            fn deps(#deps: &mut _hive::constructor::Deps) {
                #(<#types as _hive::Param>::deps(deps);)*
            }
            fn extract(#cx: &mut _hive::constructor::Cx<'_>) -> ::std::result::Result<Self, _hive::constructor::Absent> {
                ::std::result::Result::Ok(Self { #(#names: <#types as _hive::Param>::extract(cx)?),* })
            }
        }
    })
}

pub(crate) fn outputs(input: DeriveInput) -> Result<TokenStream> {
    let fields = fields(&input)?;
    let names: Vec<_> = fields.members().collect();
    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    let [outs, sink] = arguments_for(fields, ["outs", "sink"]);
    Ok(quote! {
        #[automatically_derived]
        impl #generics _hive::Outputs for #ident #arguments #bounds {
            fn keys(#outs: &mut _hive::constructor::Outs) {
                #(<#types as _hive::Outputs>::keys(outs);)*
            }
            fn emit(self, #sink: &mut _hive::constructor::Sink) -> _hive::__private::anyhow::Result<()> {
                #(<#types as _hive::Outputs>::emit(self.#names, sink)?;)*
                ::std::result::Result::Ok(())
            }
        }
    })
}
