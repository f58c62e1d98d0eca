//! Compiles the messages and services. protox reads the definitions in Rust, so that no protoc has to be installed.

use std::error::Error;

use prost_build::Config;
use protox::prost::Message as _;

const FILES: [&str; 17] = [
    "cilium.proto",
    "cilium_filters.proto",
    "cluster.proto",
    "core.proto",
    "discovery.proto",
    "endpoint.proto",
    "filters.proto",
    "listener.proto",
    "router.proto",
    "secret.proto",
    "service_cluster.proto",
    "service_endpoint.proto",
    "service_listener.proto",
    "service_route.proto",
    "service_secret.proto",
    "tcp_proxy.proto",
    "tls_inspector.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(FILES.iter().copied().chain(["upstream_http.proto"]), ["proto"])?;
    // Resources of users may contain Cilium's filters: these are described beside Envoy's messages.
    let filters = protox::compile(["cilium_filters.proto"], ["proto"])?;
    let path = std::path::Path::new(&std::env::var("OUT_DIR")?).join("cilium_filters.binpb");
    std::fs::write(path, filters.encode_to_vec())?;
    let path = std::path::Path::new(&std::env::var("OUT_DIR")?).join("descriptors.binpb");
    std::fs::write(path, files.encode_to_vec())?;
    let mut config = Config::new();
    config
        .include_file("protos.rs")
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        // Equal messages have equal bytes: clients compare them, and so does the cache.
        .btree_map(["."]);
    tonic_prost_build::configure().build_transport(false).compile_fds_with_config(files, config)?;
    Ok(())
}
