//! Fields of derived parameters and results: the compiler names the field's type and points at it.
//~ `Pool` cannot be a constructor parameter
//~ pool: Pool,
//~ `Lease` cannot be the result of a constructor
//~ lease: Lease,
//~ only structs can be derived
use std::sync::Arc;

use hive::prelude::*;

struct Pool;
struct Lease;

#[derive(Params)]
struct ApiParams {
    jobs: JobGroup,
    pool: Pool,
}

#[derive(Outputs)]
struct ApiOutputs {
    api: Arc<String>,
    lease: Lease,
}

#[derive(Params)]
enum Either {
    This(JobGroup),
    That(Lifecycle),
}

fn main() {}
