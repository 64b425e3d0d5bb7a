//! An exec that waits in a terminal: Ctrl-C, and the line that a person sees.

use std::fmt::Write as _;
use std::io::Write as _;

use super::*;

impl Server {
    /// Returns a command that runs an exec in a terminal with this many columns, whose output is in the file
    /// `screen`.
    fn in_a_terminal(&self, exec: &Command, columns: u16) -> Command {
        let mut quoted = format!("stty cols {columns}; exec {}", exec.get_program().display());
        for arg in exec.get_args() {
            write!(quoted, " '{}'", arg.display()).unwrap();
        }
        let screen = fs::File::create(self.folder.path().join("screen")).unwrap();
        let mut terminal = Command::new("script");
        terminal
            .args(["--quiet", "--return", "--command", &quoted, "/dev/null"])
            .env("LEASEHOLD_URL", &self.dev.url)
            .env("TMPDIR", self.folder.path())
            .env("SHELL", "/bin/sh")
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(screen);
        terminal
    }

    fn screen(&self) -> String {
        fs::read_to_string(self.folder.path().join("screen")).unwrap()
    }
}

#[tokio::test]
async fn interrupt_in_a_terminal_ends_the_wait() {
    let server = Server::start().await;
    let _holder = server.running(UNTIL_END).await;
    let exec = server.exec(&[], "echo ran >ran");
    let mut terminal = server.in_a_terminal(&exec, 80).spawn().unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    let exec = eventually(async || child_of(Pid::from_child(&terminal), "leasehold exec")).await;
    eventually(async || child_of(exec, "exec-keeper")).await;
    let ended = eventually(async || {
        // Ctrl-C, as often as it needs: the first may come before exec is ready.
        let _ended = keyboard.write_all(b"\x03");
        terminal.try_wait().unwrap()
    });
    assert_eq!(ended.await.code(), Some(130));
    assert!(!server.folder.path().join("ran").exists());
}

#[tokio::test]
async fn waiting_is_one_line_of_a_narrow_terminal() {
    const COLUMNS: u16 = 20;

    let server = Server::start().await;
    let holder = server.running(UNTIL_END).await;
    let exec = server.exec(&[], "echo ran");
    let mut terminal = server.in_a_terminal(&exec, COLUMNS).spawn().unwrap();
    // The same line, at least a second later.
    eventually(async || (server.screen().matches("waiting ").count() > 1).then_some(())).await;
    fs::write(server.folder.path().join("end"), "").unwrap();
    assert_eq!(holder.ended(), Some(0));
    assert!(terminal.wait().unwrap().success());
    let screen = server.screen();
    assert!(screen.contains("ran\r\n"), "{screen:?}");
    let (waiting, rest) = screen.split_once("lock acquired").unwrap();
    let rewritten = waiting.split("\r\x1b[2K").skip(1);
    let rewritten: Vec<_> = rewritten
        .map(|text| text.split('\r').next().unwrap())
        .collect();
    let is_one_line = |text: &&str| text.chars().count() < COLUMNS.into() && !text.contains('\n');
    assert!(
        rewritten.len() >= 3 && rewritten.iter().all(is_one_line),
        "{screen:?}"
    );
    // Cleared before the log continues.
    assert_eq!(rewritten.last(), Some(&""), "{screen:?}");
    assert!(!rest.contains("waiting"), "{screen:?}");
}

#[tokio::test]
async fn quiet_exec_writes_nothing() {
    let server = Server::start().await;
    let holder = server.running(UNTIL_END).await;
    let exec = server.exec(&["--quiet"], "echo ran");
    let mut terminal = server.in_a_terminal(&exec, 80).spawn().unwrap();
    let front = eventually(async || child_of(Pid::from_child(&terminal), "leasehold exec")).await;
    eventually(async || child_of(front, "exec-keeper")).await;
    fs::write(server.folder.path().join("end"), "").unwrap();
    assert_eq!(holder.ended(), Some(0));
    assert!(terminal.wait().unwrap().success());
    assert_eq!(server.screen(), "ran\r\n");
}
