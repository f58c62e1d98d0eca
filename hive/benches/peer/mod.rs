//! The same graph in Cilium's framework, if Go and its module are available: built and run once, in a temporary folder.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use anyhow::Context;

use super::{PER_MODULE, SIZE, before, part};

/// Medians in milliseconds, by part.
pub(crate) type Times = HashMap<String, f64>;

/// Measures Cilium's framework; the error is the reason why that is not possible.
pub(crate) fn measure() -> anyhow::Result<Times> {
    let folder = tempfile::tempdir()?;
    let files = [
        ("go.mod", include_str!("go.mod")),
        ("go.sum", include_str!("go.sum")),
        ("main.go", include_str!("main.go")),
        ("nodes.go", &nodes()?),
    ];
    for (name, text) in files {
        fs::write(folder.path().join(name), text)?;
    }
    let run = |command: &mut Command| -> anyhow::Result<String> {
        let output = command.current_dir(folder.path()).output();
        let output = output.with_context(|| command.get_program().display().to_string())?;
        let error = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}", error.trim().lines().next_back().unwrap_or_default());
        Ok(String::from_utf8(output.stdout)?)
    };
    run(Command::new("go").args(["build", "-buildvcs=false", "-o", "graph", "."]))?;
    let rows = run(&mut Command::new(folder.path().join("graph")))?;
    let times = rows.lines().filter_map(|row| row.split_once('\t'));
    times.map(|(part, time)| Ok((part.to_owned(), time.parse()?))).collect()
}

/// Returns the constructors and modules in Go.
fn nodes() -> Result<String, std::fmt::Error> {
    let mut text = String::from("package main\n\nimport \"github.com/cilium/hive/cell\"\n");
    for i in 0..SIZE {
        let takes = match i {
            0 => String::new(),
            _ => format!("_ *Node{}, _ *Node{}, _ *Node{}, ", before(i), part(i, 2), part(i, 3)),
        };
        writeln!(text, "\ntype Node{i} struct{{ _ int }}\n")?;
        writeln!(
            text,
            "func new{i}({takes}l cell.Lifecycle) *Node{i} {{\n\thook(l)\n\treturn &Node{i}{{}}\n}}"
        )?;
    }
    writeln!(text, "\nfunc cells() []cell.Cell {{\n\treturn []cell.Cell{{")?;
    for module in 0..SIZE / PER_MODULE {
        let constructors: Vec<String> =
            (module * PER_MODULE..).take(PER_MODULE).map(|i| format!("new{i}")).collect();
        writeln!(
            text,
            "\t\tcell.Module(\"m{module}\", \"part\", cell.Provide({})),",
            constructors.join(", ")
        )?;
    }
    writeln!(text, "\t\tcell.Invoke(func(*Node{}) {{}}),\n\t}}\n}}", SIZE - 1)?;
    Ok(text)
}
