//! Compiler errors about invalid cells: each names the invalid part and the remedy.

#[path = "../harness/compile_fail.rs"]
mod harness;

#[test]
fn messages_name_the_wrong_part() {
    let crate_dir = env!("CARGO_MANIFEST_DIR");
    let dependencies =
        format!("futures = \"0.3\"\nhive = {{ package = \"apiary-hive\", path = {crate_dir:?} }}\n");
    harness::messages_name_the_wrong_part(crate_dir, "hive-ui", &dependencies);
}
