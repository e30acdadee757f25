//! Files into a folder, without destroying what somebody changed.

use std::fs;
use std::io;
use std::path::Path;

use crate::commands::error::Failure;
use crate::commands::output;
use crate::engine::deploy::render::File;

/// Write `files` below `dir` and name each on stdout. Nothing is written when one of them is there with another text, unless `force`.
///
/// # Errors
/// A file is there and differs, or cannot be written.
pub fn into(dir: &Path, files: &[File], force: bool) -> Result<(), Failure> {
    let mut same = Vec::new();
    for file in files {
        let path = dir.join(&file.name);
        let there = match fs::read(&path) {
            Ok(found) if found == file.text.as_bytes() => true,
            Ok(_) if force => false,
            Ok(_) => {
                return Err(Failure::usage(format!("{} is there and differs", path.display()))
                    .found("nothing was written")
                    .next("--force overwrites it"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(cannot(&path, &error)),
        };
        same.push(there);
    }
    for (file, same) in files.iter().zip(same) {
        let path = dir.join(&file.name);
        if !same {
            let folder = path.parent().unwrap_or(dir);
            fs::create_dir_all(folder)
                .and_then(|()| whole(&path, &file.text))
                .map_err(|error| cannot(&path, &error))?;
        }
        output::line(format!("{}  {}", if same { "same " } else { "wrote" }, path.display()))?;
    }
    Ok(())
}

/// Write all of `text` or nothing: half a unit would be started as if it were one.
fn whole(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = Path::new(&name);
    let written = fs::write(new, text).and_then(|()| fs::rename(new, path));
    if written.is_err() {
        // It may not be there.
        let _ = fs::remove_file(new);
    }
    written
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::host(format!("cannot write {}", path.display())).found(error.to_string())
}
