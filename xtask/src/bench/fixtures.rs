//! The trees that the commands work on, generated anew for each benchmark.

use super::contenders::Arena;
use crate::shell;
use anyhow::Result;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILES_A_DIRECTORY: usize = 100;
/// Name of a user's policy below Stockade's configuration directory.
const USER_POLICY: &str = "stockade/stockade.toml";

/// A committed git repository with so many small files.
pub fn repository(arena: &Arena, files: usize) -> Result<PathBuf> {
    let project = arena.project("repository")?;
    write_tree(&project, files, 0)?;
    arena.user.give(&project)?;
    let identity = [
        "-c",
        "user.name=Bench",
        "-c",
        "user.email=bench@example.com",
    ];
    for verb in [
        &["init", "--quiet"][..],
        &["add", "."],
        &["commit", "--quiet", "-m", "All"],
    ] {
        let mut git = arena.user.command("git");
        git.current_dir(&project)
            .env("HOME", &arena.home)
            .args(identity)
            .args(verb);
        shell::run(&mut git)?;
    }
    Ok(project)
}

/// A project with so many files, of which the first `keys` end in `.key`, spread over all
/// directories.
pub fn large_project(arena: &Arena, name: &str, files: usize, keys: usize) -> Result<PathBuf> {
    let project = arena.project(name)?;
    write_tree(&project, files, keys)?;
    arena.user.give(&project)?;
    Ok(project)
}

fn write_tree(project: &Path, files: usize, keys: usize) -> Result<()> {
    let directories = files.div_ceil(FILES_A_DIRECTORY);
    for directory in 0..directories {
        let path = project.join(format!("part{}/directory{directory}", directory % 10));
        fs::create_dir_all(&path)?;
        for file in 0..FILES_A_DIRECTORY.min(files - directory * FILES_A_DIRECTORY) {
            // Numbered across the directories first, so that each gets its share of keys.
            let number = file * directories + directory;
            let extension = if number < keys { "key" } else { "txt" };
            fs::write(
                path.join(format!("file{file}.{extension}")),
                format!("{number}\n"),
            )?;
        }
    }
    Ok(())
}

/// C sources and a makefile; `make` compiles all of them anew each time.
pub fn c_project(arena: &Arena) -> Result<PathBuf> {
    let project = arena.project("c")?;
    write_c_sources(&project)?;
    arena.user.give(&project)?;
    Ok(project)
}

fn write_c_sources(project: &Path) -> Result<()> {
    const SOURCES: usize = 8;
    for source in 0..SOURCES {
        let mut text =
            String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for function in 0..120 {
            writeln!(
                text,
                "double s{source}f{function}(double *a, int n) {{ double r = {function}; \
                 for (int i = 1; i < n; i++) {{ if (a[i] > r) r += a[i] * a[i - 1]; \
                 else r -= a[i] / (i + {function}.5); }} return r; }}"
            )?;
        }
        fs::write(project.join(format!("s{source}.c")), text)?;
    }
    let objects: Vec<String> = (0..SOURCES).map(|source| format!("s{source}.o")).collect();
    let makefile = format!(
        "CFLAGS = -O2\nlibc-bench.a: {}\n\tar rcs $@ $^\n",
        objects.join(" ")
    );
    Ok(fs::write(project.join("Makefile"), makefile)?)
}

/// A project of so many files in which npm has packages with `installed` files to install, from
/// archives beside it, and `make` has C sources to compile.
pub fn npm_project(arena: &Arena, files: usize, installed: usize) -> Result<PathBuf> {
    const FILES_A_PACKAGE: usize = 200;
    let project = arena.project("npm")?;
    write_tree(&project.join("tree"), files, 0)?;
    write_c_sources(&project)?;
    let archives = project.join("archives");
    fs::create_dir(&archives)?;
    let mut dependencies = Vec::new();
    for package in 0..installed / FILES_A_PACKAGE {
        let name = format!("package{package}");
        let staging = arena.scratch.path().join(&name);
        let content = staging.join("package");
        for file in 0..FILES_A_PACKAGE - 1 {
            let directory = content.join(format!("lib/part{}", file % 12));
            fs::create_dir_all(&directory)?;
            let line = format!("exports.value{file} = {file} * {package};\n");
            let path = directory.join(format!("module{file}.js"));
            fs::write(path, line.repeat(10 + file % 60))?;
        }
        let manifest = format!(r#"{{ "name": "{name}", "version": "1.0.0" }}"#);
        fs::write(content.join("package.json"), manifest)?;
        let mut tar = Command::new("tar");
        tar.arg("-czf").arg(archives.join(format!("{name}.tgz")));
        shell::run(tar.arg("-C").arg(&staging).arg("package"))?;
        fs::remove_dir_all(&staging)?;
        dependencies.push(format!(r#""{name}": "file:archives/{name}.tgz""#));
    }
    let manifest = format!(
        r#"{{ "name": "bench", "version": "1.0.0", "dependencies": {{ {} }} }}"#,
        dependencies.join(", ")
    );
    fs::write(project.join("package.json"), manifest)?;
    arena.user.give(&project)?;
    Ok(project)
}

/// A Rust crate without dependencies that the compiler needs some seconds for.
pub fn rust_project(arena: &Arena) -> Result<PathBuf> {
    const FUNCTIONS: u32 = 22;
    let project = arena.project("rust")?;
    let mut text = String::from("use std::collections::{BTreeMap, HashMap};\n");
    for function in 0..FUNCTIONS {
        writeln!(
            text,
            "fn f{function}(n: u64) -> usize {{ \
             let a: BTreeMap<[u8; {size}], Vec<u64>> = \
             (0..n).map(|i| ([i as u8; {size}], vec![i; 3])).collect(); \
             let b: HashMap<u64, String> = a.values().flatten().map(|v| (*v, format!(\"{{v}}\"))).collect(); \
             a.len() + b.values().map(String::len).sum::<usize>() }}",
            size = function % 12 + 1
        )?;
    }
    let calls: Vec<String> = (0..FUNCTIONS)
        .map(|function| format!("f{function}(9)"))
        .collect();
    writeln!(
        text,
        "fn main() {{ println!(\"{{}}\", {}); }}",
        calls.join(" + ")
    )?;
    fs::write(project.join("main.rs"), text)?;
    arena.user.give(&project)?;
    Ok(project)
}

/// A configuration directory whose user policy says `policy`, for `XDG_CONFIG_HOME`.
pub fn configuration(arena: &Arena, name: &str, policy: &str) -> Result<PathBuf> {
    let directory = arena.scratch.directory_of(&arena.user, name)?;
    let file = directory.join(USER_POLICY);
    fs::create_dir_all(file.parent().expect("the policy lies in a directory"))?;
    fs::write(&file, policy)?;
    arena.user.give(&directory)?;
    Ok(directory)
}
