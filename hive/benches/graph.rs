//! Speed of planning and construction.

fn main() {}
