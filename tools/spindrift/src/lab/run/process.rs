//! A process of this program on a host of a lab.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// A process, which ends with this.
pub(super) struct Process {
    child: Child,
    /// For people: which it is.
    name: String,
    /// Its standard output and standard error.
    output: PathBuf,
    messages: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, or nobody waits for what it has to say.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts it with its standard output and standard error in files. `name` is for people.
    pub(super) fn start(
        mut command: Command,
        name: String,
        output: PathBuf,
        messages: PathBuf,
    ) -> Result<Self> {
        let create =
            |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        command.stdin(Stdio::null()).stdout(create(&output)?).stderr(create(&messages)?);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name, output, messages })
    }

    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().with_context(|| format!("cannot wait for {}", self.name))?.is_some())
    }

    /// What it has printed so far.
    pub(super) fn output(&self) -> Result<String> {
        let path = &self.output;
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    }

    pub(super) fn messages(&self) -> Result<String> {
        let path = &self.messages;
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// What it printed, if all went well.
    pub(super) fn end(mut self) -> Result<String> {
        let status = self.child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        if !status.success() {
            bail!("{}", self.why()?);
        }
        self.output()
    }

    /// Why it failed.
    pub(super) fn why(&self) -> Result<String> {
        let messages = self.messages()?;
        let messages = messages.lines().filter(|line| !line.contains("waiting for a client"));
        let text = messages.collect::<Vec<_>>().join("; ");
        Ok(format!("{} failed: {text}", self.name))
    }
}
