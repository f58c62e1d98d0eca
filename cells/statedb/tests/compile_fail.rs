//! Compiler errors about invalid tables: each names the invalid part and the remedy.

#[path = "../../../hive/tests/harness/compile_fail.rs"]
mod harness;

#[test]
fn messages_name_the_wrong_part() {
    let crate_dir = env!("CARGO_MANIFEST_DIR");
    let dependencies = format!(
        "serde = {{ version = \"1\", features = [\"derive\"] }}\nstatedb = {{ path = {crate_dir:?} }}\n"
    );
    harness::messages_name_the_wrong_part(crate_dir, "statedb-ui", &dependencies);
}
