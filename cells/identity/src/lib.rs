//! Security identities: the numbers behind label sets and prefixes.
