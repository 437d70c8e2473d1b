//! Requests: each is answered here, turned into an operation of its connection, or lent to a worker.

use crate::agent::{Agent, Timer};
use crate::connection::Operation;
use crate::slab::Key;
use crate::workers::{Class, Task};
use crate::{caps, console, files, identity, machine, sys};
use alcove_protocol::{Configure, ErrorBody, ErrorCode, ExecRecord, Info, Kind, Request};
use serde::Serialize;
use std::rc::Rc;

const MAX_INPUT_NAME: usize = 64;

#[derive(Serialize)]
pub struct Empty {}

pub type Answer<T> = Result<T, ErrorBody>;

pub fn bad_request(message: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::BadRequest, message)
}

impl Agent {
    /// Replies and ends the operation.
    pub fn reply<T: Serialize>(&mut self, key: Key, reply: &T) {
        if let Some(connection) = self.connections.list.get_mut(key) {
            connection.push_json(Kind::Reply, reply);
            connection.push(Kind::End, &[]);
            self.end_operation(key);
        }
    }

    pub fn refuse(&mut self, key: Key, error: &ErrorBody) {
        if let Some(connection) = self.connections.list.get_mut(key) {
            connection.push_error(error);
            self.end_operation(key);
        }
    }

    fn answer<T: Serialize>(&mut self, key: Key, answer: Answer<T>) {
        match answer {
            Ok(reply) => self.reply(key, &reply),
            Err(error) => self.refuse(key, &error),
        }
    }

    pub fn serve(&mut self, key: Key, request: Request) {
        let free = matches!(request, Request::SandboxConfigure(_) | Request::SandboxInfo(_) | Request::SandboxRenew(_));
        if self.connections.token.is_none() && !free {
            let message = "the sandbox has not been configured yet: sandbox.configure comes first";
            return self.refuse(key, &ErrorBody::new(ErrorCode::Unconfigured, message));
        }
        match request {
            Request::SandboxConfigure(configure) => {
                let answer = self.configure(configure).map(|()| Empty {});
                self.answer(key, answer);
            }
            Request::SandboxInfo(_) => {
                let info = Info {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    agent: "alcove-agent".to_owned(),
                    pid: std::process::id() as i32,
                    uptime_ms: sys::boottime_ms().saturating_sub(self.started),
                    sandbox_id: self.config.sandbox_id.clone(),
                    execs_running: self.commands.running,
                };
                self.reply(key, &info);
            }
            Request::SandboxExpiry(expiry) => {
                self.set_expiry(expiry.expires_in_ms);
                self.reply(key, &Empty {});
            }
            Request::SandboxEvents(_) => {
                if let Some(connection) = self.connections.list.get_mut(key) {
                    connection.push_json(Kind::Reply, &Empty {});
                    connection.operation = Operation::Listening;
                    self.connections.followers.push(key);
                    self.mark(key);
                }
            }
            Request::SandboxShutdown(_) => {
                self.reply(key, &Empty {});
                self.flush(key);
                self.stopping = true;
            }
            Request::SandboxRenew(renew) => {
                let answer = self.renew(&renew).map(|()| Empty {});
                self.answer(key, answer);
            }
            Request::ExecStart(start) => {
                if let Err(error) = self.start_exec(key, *start) {
                    self.refuse(key, &error);
                }
            }
            Request::ExecGroup(group) => {
                let answer = self.lend_group(key, group).map(|()| Empty {});
                self.answer(key, answer);
            }
            Request::ExecAttach(attach) => {
                if let Err(error) = self.attach(key, &attach) {
                    self.refuse(key, &error);
                }
            }
            Request::ExecGet(get) => {
                let answer = self.find_exec(&get.exec_id).map(|(_, exec)| {
                    let input_taken = get.input.as_deref().and_then(|name| exec.inputs.told(name));
                    ExecRecord { input_taken, ..exec.record(None) }
                });
                self.answer(key, answer);
            }
            Request::ExecList(list) => {
                let batch = self.list_execs(list.after);
                self.reply(key, &batch);
            }
            Request::ExecStdin(request) => {
                if let Err(error) = self.begin_stdin(key, &request) {
                    self.refuse(key, &error);
                }
            }
            Request::ExecStdinClose(name) => {
                let answer = self.close_stdin(&name.exec_id).map(|()| Empty {});
                self.answer(key, answer);
            }
            Request::ExecResize(resize) => {
                let answer = self.resize(&resize).map(|()| Empty {});
                self.answer(key, answer);
            }
            Request::ExecSignal(signal) => {
                let answer = self.signal(&signal).map(|()| Empty {});
                self.answer(key, answer);
            }
            Request::ExecKill(kill) => {
                if let Err(error) = self.kill(key, &kill) {
                    self.refuse(key, &error);
                }
            }
            Request::ExecGrace(grace) => {
                let answer = self.set_grace(&grace).map(|()| Empty {});
                self.answer(key, answer);
            }
            Request::SandboxStats(_) => {
                let whole_machine = self.machine.is_some();
                self.lend(key, Class::Short, Task::Stats { whole_machine });
            }
            Request::FileStat(request) => self.lend(key, Class::Short, Task::Stat(request)),
            Request::FileList(request) => self.lend(key, Class::Short, Task::List(request)),
            Request::FileRead(request) => self.lend(key, Class::Stream, Task::Read(request)),
            Request::FileWrite(request) => self.lend(key, Class::Stream, Task::Write(request)),
            Request::FileMkdir(request) => self.lend(key, Class::Short, Task::Mkdir(request)),
            Request::FileMove(request) => self.lend(key, Class::Short, Task::Move(request)),
            Request::FileRemove(request) => self.lend(key, Class::Short, Task::Remove(request)),
            Request::FileChmod(request) => self.lend(key, Class::Short, Task::Chmod(request)),
            Request::FileGlob(request) => self.lend(key, Class::Short, Task::Glob(request)),
            Request::FileArchive(request) => self.lend(key, Class::Stream, Task::Archive(request)),
            Request::FileUnpack(request) => self.lend(key, Class::Stream, Task::Unpack(request)),
            Request::FileWatch(request) => self.lend(key, Class::Watch, Task::Watch(request)),
            Request::PortDial(request) => self.lend(key, Class::Dial, Task::Dial(request)),
        }
    }

    fn configure(&mut self, request: Configure) -> Answer<()> {
        if request.token.len() != 64 || !request.token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad_request("token: 64 hexadecimal digits are wanted"));
        }
        let mut config = (*self.config).clone();
        config.sandbox_id = Some(request.sandbox_id);
        if let Some(env) = request.env {
            check_env(&env)?;
            config.env = env;
        }
        if let Some(user) = request.user.filter(|user| !user.is_empty()) {
            config.user = user;
        }
        if let Some(workdir) = request.workdir.filter(|workdir| !workdir.is_empty()) {
            config.workdir = workdir;
        }
        if let Some(bytes) = request.ring_bytes {
            config.ring_bytes = bytes.clamp(4096, 64 << 20) as usize;
        }
        if let Some(bytes) = request.journals_bytes {
            config.journals_bytes = bytes.clamp(64 << 10, 1 << 30) as usize;
        }
        if let Some(names) = request.exec_caps {
            config.exec_caps = 0;
            for name in names {
                let number = caps::by_name(&name)
                    .ok_or_else(|| bad_request(format!("exec_caps: \"{name}\" is no capability")))?;
                if caps::permitted() & 1 << number == 0 {
                    return Err(bad_request(format!("exec_caps: the agent does not hold {name} and cannot give it")));
                }
                config.exec_caps |= 1 << number;
            }
        }
        let user = config.user(None).map_err(|error| bad_request(error.to_string()))?;
        if let Some(hostname) = request.hostname.filter(|hostname| !hostname.is_empty()) {
            if let Some(machine) = &mut self.machine {
                machine.rename(&hostname)?;
            }
            // Allowed only before the first configuration, and only in a host-name namespace of its own; the launcher
            // may have set it already. A sandbox without it works all the same.
            // SAFETY: the name is valid for its length.
            let _ = unsafe { libc::sethostname(hostname.as_ptr().cast(), hostname.len().min(64)) };
        }
        // Capabilities that no command is to get are given up before the first command can run.
        identity::settle(config.ids, config.exec_caps, config.root_caps)
            .map_err(|error| ErrorBody::new(ErrorCode::Io, format!("capabilities cannot be dropped: {error}")))?;
        files::create_workdir(&config.workdir, &user, config.ids)?;
        if let Some(entropy) = request.entropy {
            stir(&entropy)?;
        }
        // The first one ends the wait for it, whatever it says of an expiry.
        let is_first = self.connections.token.is_none();
        if is_first || request.expires_in_ms.is_some() {
            self.set_expiry(request.expires_in_ms.flatten());
        }
        let name = config.sandbox_id.as_deref().unwrap_or("without a name");
        console::say(format_args!("sandbox {name} is ready; commands run as uid {} in {}", user.uid, config.workdir));
        self.config = Rc::new(config);
        self.connections.token = Some(request.token);
        Ok(())
    }

    fn set_expiry(&mut self, expires_in_ms: Option<u64>) {
        if let Some(timer) = self.expiry.take() {
            self.timers.cancel(timer);
        }
        self.expiry = expires_in_ms.map(|after| self.timers.add(after, Timer::Expiry));
    }
}

/// A name that is worth remembering.
pub fn check_input_name(name: Option<&str>) -> Answer<()> {
    match name {
        Some(name) if name.is_empty() || name.len() > MAX_INPUT_NAME => {
            Err(bad_request(format!("input: a name of 1 to {MAX_INPUT_NAME} bytes is wanted")))
        }
        _ => Ok(()),
    }
}

/// Names and values that the kernel can pass to a program.
pub fn check_env(env: &std::collections::BTreeMap<String, String>) -> Answer<()> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(bad_request(format!("env: {name:?} has an empty name, or holds = or a zero byte")));
        }
    }
    Ok(())
}

fn stir(hex: &str) -> Answer<()> {
    let bytes = machine::unhex(hex).ok_or_else(|| bad_request("entropy: pairs of hexadecimal digits are wanted"))?;
    if let Ok(device) = sys::open(c"/dev/urandom", libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY, 0) {
        use std::os::fd::AsRawFd;
        // The kernel's generator is seeded already; this only adds to it.
        let _ = sys::write(device.as_raw_fd(), &bytes);
    }
    Ok(())
}
