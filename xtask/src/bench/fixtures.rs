//! The trees that the commands work on, generated anew for each benchmark.

use super::contenders::Arena;
use crate::shell;
use anyhow::Result;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

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
pub fn large_project(arena: &Arena, files: usize, keys: usize) -> Result<PathBuf> {
    let project = arena.project("large")?;
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
    const SOURCES: usize = 8;
    let project = arena.project("c")?;
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
    fs::write(project.join("Makefile"), makefile)?;
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
