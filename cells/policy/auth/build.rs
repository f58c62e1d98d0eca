//! Compiles the service. protox reads its definition in Rust, so that no protoc has to be installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["delegatedidentity.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    Ok(())
}
