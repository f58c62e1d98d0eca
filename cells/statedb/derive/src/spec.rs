//! The validated description of a struct and its attributes.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Field, Fields, Ident, LitStr, Path, Result, Token, Visibility,
};

use crate::attributes::{Item, each, nearest, unknown, value};
use crate::shape::{Items, Key};

/// The maximum number of fields of a primary key: `IndexKey` is implemented for tuples of up to four.
const MAX_KEY_FIELDS: usize = 4;

/// A table.
pub(crate) struct Spec<'i> {
    pub(crate) ident: &'i Ident,
    pub(crate) vis: &'i Visibility,
    pub(crate) name: LitStr,
    pub(crate) primary: Vec<&'i Field>,
    pub(crate) primary_name: Option<LitStr>,
    pub(crate) indexes: Vec<IndexField<'i>>,
    /// Indexes that are declared by hand.
    pub(crate) more_indexes: Vec<Path>,
    pub(crate) columns: Vec<Column<'i>>,
    pub(crate) insertable: Option<Span>,
    /// Whether `TableDisplay` is implemented, too.
    pub(crate) display: bool,
}

/// An index by a field.
pub(crate) struct IndexField<'i> {
    pub(crate) field: &'i Field,
    pub(crate) name: LitStr,
    pub(crate) unique: bool,
    pub(crate) multi: bool,
    /// Longest-prefix match.
    pub(crate) lpm: bool,
}

/// A column.
pub(crate) struct Column<'i> {
    pub(crate) field: &'i Field,
    pub(crate) heading: LitStr,
    pub(crate) with: Option<Expr>,
}

/// The arguments of `#[table(..)]`.
#[derive(Default)]
struct TableArguments {
    name: Option<LitStr>,
    primary: Option<(Span, Vec<Ident>)>,
    primary_name: Option<LitStr>,
    more_indexes: Vec<Path>,
    insertable: Option<Span>,
    no_display: Option<Span>,
    library: Option<Path>,
}

/// Errors that are reported together.
#[derive(Default)]
struct Faults(Option<Error>);

impl Faults {
    fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }
}

/// Returns the name of a named field.
pub(crate) fn ident(field: &Field) -> Ident {
    // `fields` rejects structs with unnamed fields, so the fallback is never used.
    field.ident.clone().unwrap_or_else(|| Ident::new("_", field.span()))
}

impl<'i> Spec<'i> {
    pub(crate) fn of(input: &'i DeriveInput) -> Result<Self> {
        let fields = fields(input)?;
        let mut faults = Faults::default();
        let arguments = TableArguments::of(&input.attrs, &mut faults);
        let name = name(input, arguments.name, &mut faults);
        let (primary, own_name) = primary(input, &fields, arguments.primary, &mut faults);
        let primary_name = arguments.primary_name.or(own_name);
        let (mut indexes, mut columns) = (Vec::new(), Vec::new());
        for &field in &fields {
            refuse(&field.attrs, "table", "on the struct", &mut faults);
            for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("index")) {
                indexes.extend(faults.keep(IndexField::of(field, attribute)));
            }
            columns.extend(faults.keep(Column::of(field)).flatten());
        }
        for attribute in ["primary", "index", "column"] {
            refuse(&input.attrs, attribute, "on a field", &mut faults);
        }
        if let (Some(_), Some(span)) = (arguments.insertable, arguments.no_display) {
            faults.add(Error::new(
                span,
                "rows that tools may write need the display: take `no_display` or `insertable` out",
            ));
        }
        different(&primary_name, &indexes, &columns, &mut faults);
        match (faults.0, name) {
            (None, Some(name)) => Ok(Spec {
                ident: &input.ident,
                vis: &input.vis,
                name,
                primary,
                primary_name,
                indexes,
                more_indexes: arguments.more_indexes,
                columns,
                insertable: arguments.insertable,
                display: arguments.no_display.is_none(),
            }),
            (errors, _) => Err(errors.unwrap_or_else(|| Error::new(input.ident.span(), "no table"))),
        }
    }
}

fn fields(input: &DeriveInput) -> Result<Vec<&Field>> {
    let ident = &input.ident;
    if !input.generics.params.is_empty() {
        let what =
            "a table is of one type: take the parameters out, or implement `statedb::TableSpec` by hand";
        return Err(Error::new_spanned(&input.generics, what));
    }
    let named = |what| format!("the rows of a table are structs with named fields; `{ident}` is {what}");
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => Ok(fields.named.iter().collect()),
            Fields::Unnamed(fields) => {
                let what = "a tuple: give its fields names, or implement `statedb::TableSpec` by hand";
                Err(Error::new_spanned(fields, named(what)))
            }
            Fields::Unit => Err(Error::new_spanned(ident, named("empty"))),
        },
        Data::Enum(data) => {
            Err(Error::new_spanned(data.enum_token, named("an enum: make a struct with a key and the enum")))
        }
        Data::Union(data) => Err(Error::new_spanned(data.union_token, named("a union"))),
    }
}

/// Reports attributes in the wrong place.
fn refuse(attributes: &[Attribute], name: &str, place: &str, faults: &mut Faults) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident(name)) {
        faults.add(Error::new_spanned(attribute, format!("`#[{name}]` belongs {place}")));
    }
}

/// Returns the path to the library: that of `#[table(crate = "..")]`, or the usual one.
pub(crate) fn library(attributes: &[Attribute]) -> Path {
    // `Spec::of` reports the faults.
    let arguments = TableArguments::of(attributes, &mut Faults::default());
    arguments.library.unwrap_or_else(|| syn::parse_quote!(::statedb))
}

impl TableArguments {
    fn of(attributes: &[Attribute], faults: &mut Faults) -> Self {
        let mut arguments = TableArguments::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("table")) {
            faults.keep(each(attribute, |item, input| arguments.add(item, input)));
        }
        arguments
    }

    fn add(&mut self, item: Item, input: ParseStream<'_>) -> Result<()> {
        match &item {
            Item::Word(word) if word == "name" => self.name = Some(value(input)?),
            Item::Word(word) if word == "crate" => {
                self.library = Some(value::<LitStr>(input)?.parse_with(Path::parse_mod_style)?);
            }
            Item::Word(word) if word == "primary" => self.primary(word.span(), input)?,
            Item::Word(word) if word == "insertable" => self.insertable = Some(word.span()),
            Item::Word(word) if word == "no_display" => self.no_display = Some(word.span()),
            Item::Word(word) if word == "index" => {
                let list;
                syn::parenthesized!(list in input);
                self.more_indexes.extend(Punctuated::<Path, Token![,]>::parse_terminated(&list)?);
            }
            item => {
                return Err(unknown(
                    "table",
                    item,
                    &["name", "primary", "index", "insertable", "no_display", "crate"],
                ));
            }
        }
        Ok(())
    }

    /// `primary(table, dst, name = "id")`
    fn primary(&mut self, span: Span, input: ParseStream<'_>) -> Result<()> {
        let list;
        syn::parenthesized!(list in input);
        let mut fields = Vec::new();
        while !list.is_empty() {
            let word = list.call(Ident::parse_any)?;
            match word == "name" && list.peek(Token![=]) {
                true => self.primary_name = Some(value(&list)?),
                false => fields.push(word),
            }
            if !list.is_empty() {
                list.parse::<Token![,]>()?;
            }
        }
        self.primary = Some((span, fields));
        Ok(())
    }
}

/// Checks the table's name, which the database would otherwise refuse at run time.
fn name(input: &DeriveInput, name: Option<LitStr>, faults: &mut Faults) -> Option<LitStr> {
    let Some(name) = name else {
        faults.add(Error::new(input.ident.span(), "the table has no name: write `#[table(name = \"..\")]`"));
        return None;
    };
    let text = name.value();
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) || !text.chars().all(valid) || text.len() > 31 {
        let what = "names of tables are a lower-case letter, then up to 30 of a-z, 0-9, `-`, `_`";
        faults.add(Error::new(name.span(), what));
    }
    Some(name)
}

/// Returns the fields of the primary key, and its name from `#[primary(name = "..")]`.
fn primary<'i>(
    input: &DeriveInput,
    fields: &[&'i Field],
    list: Option<(Span, Vec<Ident>)>,
    faults: &mut Faults,
) -> (Vec<&'i Field>, Option<LitStr>) {
    let (mut marked, mut name): (Vec<&'i Field>, _) = (Vec::new(), None);
    for &field in fields {
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("primary")) {
            if !marked.is_empty() {
                let names: Vec<String> =
                    marked.iter().chain([&field]).map(|field| ident(field).to_string()).collect();
                let names = names.join(", ");
                let what = format!(
                    "a second primary key; for one of several fields write `#[table(primary({names}))]`"
                );
                faults.add(Error::new_spanned(attribute, what));
            } else if list.is_some() {
                let what =
                    "the primary key is said in `#[table(primary(..))]` already: take one of the two out";
                faults.add(Error::new_spanned(attribute, what));
            }
            faults.keep(each(attribute, |item, input| {
                match &item {
                    Item::Word(word) if word == "name" => name = Some(value(input)?),
                    Item::Word(word) if word == "lpm" => {
                        let what = "a primary key tells rows apart, a longest match does not: mark it `#[primary]`, and \
                                    add `#[index(lpm)]`";
                        return Err(Error::new(word.span(), what));
                    }
                    item => return Err(unknown("primary", item, &["name"])),
                }
                Ok(())
            }));
            marked.push(field);
        }
    }
    let Some((span, list)) = list else {
        if marked.is_empty() {
            let row = &input.ident;
            let what = format!(
                "`{row}` has no primary key: mark the field that tells rows apart with `#[primary]`, or several by \
                 `#[table(primary(a, b))]` on the struct"
            );
            faults.add(Error::new(row.span(), what));
        }
        return (marked, name);
    };
    if !(2..=MAX_KEY_FIELDS).contains(&list.len()) {
        let what = format!(
            "`primary(..)` on the struct names two to {MAX_KEY_FIELDS} fields; for one write `#[primary]` on the field"
        );
        faults.add(Error::new(span, what));
    }
    let mut found = Vec::new();
    for wanted in list {
        let field = fields.iter().find(|field| ident(field).unraw() == wanted.unraw());
        match field {
            Some(field) => found.push(*field),
            None => {
                let names: Vec<String> = fields.iter().map(|field| ident(field).to_string()).collect();
                let near = nearest(&wanted.to_string(), names.iter().map(String::as_str));
                let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                faults.add(Error::new(
                    wanted.span(),
                    format!("`{}` has no field `{wanted}`{near}", input.ident),
                ));
            }
        }
    }
    (found, name)
}

impl<'i> IndexField<'i> {
    fn of(field: &'i Field, attribute: &Attribute) -> Result<Self> {
        let own = ident(field).unraw();
        let name = LitStr::new(&own.to_string(), own.span());
        let mut index = IndexField { field, name, unique: false, multi: false, lpm: false };
        each(attribute, |item, input| {
            match &item {
                Item::Word(word) if word == "unique" => index.unique = true,
                Item::Word(word) if word == "multi" => index.multi = true,
                Item::Word(word) if word == "lpm" => index.lpm = true,
                Item::Word(word) if word == "name" => index.name = value(input)?,
                item => return Err(unknown("index", item, &["unique", "multi", "lpm", "name"])),
            }
            Ok(())
        })?;
        let text = index.name.value();
        if text.is_empty() || text.starts_with("__") || text == "primary" {
            let what = "names of indexes are not empty, not `primary`, and do not begin with `__`";
            return Err(Error::new(index.name.span(), what));
        }
        let items =
            Items::of(&field.ty).filter(|_| matches!(Key::of(&field.ty), Key::Other(_) | Key::Value(_)));
        match items {
            None if index.multi => Err(Error::new(
                field.ty.span(),
                "`multi` is for collections, maps and options; for others declare an `Index` and name it in \
                 `#[table(index(..))]`",
            )),
            Some(Items::Option(_)) => Ok(index),
            Some(_) if !index.multi && !matches!(Key::of(&field.ty), Key::Value(_)) => {
                Err(Error::new_spanned(
                    attribute,
                    "a collection has a key for each of its items: write `#[index(multi)]`",
                ))
            }
            _ => Ok(index),
        }
    }
}

impl<'i> Column<'i> {
    fn of(field: &'i Field) -> Result<Option<Self>> {
        let own = ident(field).unraw();
        let heading = LitStr::new(&pascal(&own.to_string()), own.span());
        let mut column = Column { field, heading, with: None };
        let mut skip = false;
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("column")) {
            each(attribute, |item, input| {
                match item {
                    Item::Text(text) => column.heading = text,
                    Item::Word(word) if word == "skip" => skip = true,
                    Item::Word(word) if word == "with" => column.with = Some(value(input)?),
                    item => return Err(unknown("column", &item, &["skip", "with"])),
                }
                Ok(())
            })?;
        }
        Ok((!skip).then_some(column))
    }
}

/// Converts a field's name to a heading: `link_index` to `LinkIndex`.
fn pascal(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
    };
    name.split('_').map(word).collect()
}

/// Reports duplicate names of indexes and columns.
fn different(
    primary: &Option<LitStr>,
    indexes: &[IndexField<'_>],
    columns: &[Column<'_>],
    faults: &mut Faults,
) {
    let names = primary.iter().chain(indexes.iter().map(|index| &index.name));
    let headings = columns.iter().map(|column| &column.heading);
    twice(names, "two indexes are named", "give one another by `name = \"..\"`", faults);
    twice(headings, "two columns are headed", "give one another by `#[column(\"..\")]`", faults);
}

fn twice<'n>(names: impl Iterator<Item = &'n LitStr>, what: &str, remedy: &str, faults: &mut Faults) {
    let mut seen = Vec::new();
    for name in names {
        let text = name.value();
        match seen.contains(&text) {
            true => faults.add(Error::new(name.span(), format!("{what} `{text}`: {remedy}"))),
            false => seen.push(text),
        }
    }
}
