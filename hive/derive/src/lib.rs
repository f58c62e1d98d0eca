//! Derive macros of the hive: Params, Outputs, Object, Config, FlagValue, ShakuDeps.
//!
//! They are re-exported by the `hive` crate, whose documentation shows their use.
//!
//! Generated code refers to the library as `::hive`. In a crate that has it under another path, all of them take
//! `#[hive(crate = "facade::hive")]` on the type; [`ShakuDeps`](derive@ShakuDeps), which refers to `::hive_shaku`, takes
//! `#[hive_shaku(crate = "..")]`.

mod config;
mod flag_value;
mod library;
mod literal;
mod object;
mod params;
mod shaku;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

use crate::library::Library;

const HIVE: Library = Library { name: "hive" };
const SHAKU: Library = Library { name: "hive_shaku" };

fn expand(
    input: TokenStream,
    library: Library,
    with: fn(DeriveInput) -> syn::Result<proc_macro2::TokenStream>,
) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let attributes = input.attrs.clone();
    match with(input) {
        Ok(code) => library.scope(&attributes, code).into(),
        Err(error) => error.into_compile_error().into(),
    }
}

/// Derives a single constructor parameter from a struct whose fields are parameters.
#[proc_macro_derive(Params, attributes(hive))]
pub fn params(input: TokenStream) -> TokenStream {
    expand(input, HIVE, params::params)
}

/// Derives a single constructor result from a struct whose fields are results.
#[proc_macro_derive(Outputs, attributes(hive))]
pub fn outputs(input: TokenStream) -> TokenStream {
    expand(input, HIVE, params::outputs)
}

/// Marks a type that a constructor may return bare: `fn() -> Foo` provides `Arc<Foo>`.
#[proc_macro_derive(Object, attributes(hive))]
pub fn object(input: TokenStream) -> TokenStream {
    expand(input, HIVE, object::object)
}

/// Derives the options of a struct from its fields. The doc comment of a field is its help text.
///
/// `#[flag(..)]` takes, all optional:
/// - `name = "x"`: the option's name; otherwise the field's with dashes for underscores
/// - `short = 'x'`: the letter of its short form on the command line
/// - `default = v`: a literal, written as the option would be (`"30s"`, `true`, `"a,b"`), or an expression of the
///   field's type; otherwise the type's zero
/// - `unit = "bytes"`: shown in the help text
/// - `group = "Network"`: the heading in the help text
/// - `hidden`: not shown in the help text
/// - `live`: a change takes effect at run time, for consumers of a `ConfigWatch` of the struct; a change of any other
///   option takes effect at the next start
/// - `joins`: repeated flags on the command line are joined by commas, as for lists and maps
/// - `secret`: the value is never shown
/// - `deprecated = "set x instead"`: this hint is logged when the option is set
/// - `file_only`: read from files and folders, no flag and no environment variable
/// - `alias = "old"`, repeatable: a former name that files and folders may use
/// - `parse = "what it looks like"`: the field's type is parsed from text by `FromStr`, and this describes valid
///   values; a literal default is required
///
/// `#[config(..)]` on the struct takes:
/// - `check = path`: a `fn(&Self) -> Result<(), String>` that validates the combination of options; the error describes
///   what is wrong
/// - `group = "Network"`: the heading of all its options
///
/// The struct implements [`Default`] as well: each option at its default, without `check`. It panics if a default is
/// not of its option's type, which a hive reports when it is built.
#[proc_macro_derive(Config, attributes(flag, config, hive))]
pub fn config(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let (attributes, placeholder) = (input.attrs.clone(), config::placeholder(&input));
    match config::config(input) {
        Ok(code) => HIVE.scope(&attributes, code).into(),
        Err(error) => [error.into_compile_error(), HIVE.scope(&attributes, placeholder)]
            .into_iter()
            .collect::<proc_macro2::TokenStream>()
            .into(),
    }
}

/// Derives the type of an option from an enum. Each variant is one of the option's values, written as its name in lower
/// case or as the name in `#[flag(name = "..")]`; for other texts the error lists these values. The first variant is
/// the default of fields without one.
#[proc_macro_derive(FlagValue, attributes(flag, hive))]
pub fn flag_value(input: TokenStream) -> TokenStream {
    expand(input, HIVE, flag_value::flag_value)
}

/// Derives the dependencies of a shaku component, for `hive_shaku::Shaku`: read from the same `#[shaku(inject)]`
/// attributes that shaku's own derive reads. `Arc<I>`, `Vec<Arc<I>>` and `HashMap<K, Arc<I>>` are supported.
#[proc_macro_derive(ShakuDeps, attributes(shaku, hive_shaku))]
pub fn shaku_deps(input: TokenStream) -> TokenStream {
    expand(input, SHAKU, shaku::shaku_deps)
}
