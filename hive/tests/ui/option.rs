//! Options: wrong properties, names, types and defaults.
//~ unknown property; there are name, short, default, unit, group, hidden, file_only, live, secret, joins, deprecated, alias, parse
//~ option names are lower case: a-z, 0-9, `-`, `.`, `_`
//~ with `parse` a default is required
//~ only structs can be derived
//~ `Mode` cannot be an option
#[derive(hive::Config)]
struct WrongProperty {
    #[flag(defualt = 1)]
    mtu: u16,
}

#[derive(hive::Config)]
struct WrongName {
    #[flag(name = "MTU")]
    mtu: u16,
}

struct Mode;

#[derive(hive::Config)]
struct WrongType {
    mode: Mode,
}

#[derive(hive::Config)]
struct NoDefault {
    #[flag(parse = "native or tunnel")]
    mode: String,
}

#[derive(hive::Config)]
enum NoStruct {}

fn main() {}
