import { type Static, type TSchema, Type } from "typebox";

/** What is read of the engine's answers; it may send more. */
const orNull = <S extends TSchema>(schema: S) => Type.Optional(Type.Union([schema, Type.Null()]));
const texts = Type.Array(Type.String());
const labels = Type.Record(Type.String(), Type.String());

export const Anything = Type.Unknown();

export const VolumeList = Type.Object({ Volumes: orNull(Type.Array(Type.Object({ Name: Type.String() }))) });

export const CreatedContainer = Type.Object({ Id: Type.String(), Warnings: orNull(texts) });

export const ImageInspection = Type.Object({
  Id: Type.String(),
  Config: orNull(
    Type.Object({
      /** Looked at one by one only once there are few enough. */
      Env: Type.Optional(Anything),
      User: orNull(Type.String()),
      WorkingDir: orNull(Type.String()),
      Labels: Type.Optional(Anything),
      ExposedPorts: Type.Optional(Anything),
      Volumes: Type.Optional(Anything),
    }),
  ),
});
export type ImageInspection = Static<typeof ImageInspection>;

export const ContainerInspection = Type.Object({
  Id: Type.String(),
  State: Type.Object({
    Status: Type.String(),
    Running: Type.Boolean(),
    OOMKilled: Type.Optional(Type.Boolean()),
    ExitCode: Type.Optional(Type.Integer()),
    Pid: Type.Optional(Type.Integer()),
  }),
  Config: Type.Object({ Labels: orNull(labels) }),
  GraphDriver: orNull(Type.Object({ Data: orNull(Type.Object({ UpperDir: Type.Optional(Type.String()) })) })),
  Mounts: orNull(
    Type.Array(
      Type.Object({
        Type: Type.Optional(Type.String()),
        Source: Type.Optional(Type.String()),
        RW: Type.Optional(Type.Boolean()),
      }),
    ),
  ),
  /** In the engine's own folder of the container. */
  HostsPath: orNull(Type.String()),
  HostnamePath: orNull(Type.String()),
});
export type ContainerInspection = Static<typeof ContainerInspection>;

export const CreatedExec = Type.Object({ Id: Type.String() });

export const EngineInfo = Type.Object({
  ServerVersion: Type.String(),
  Runtimes: orNull(Type.Record(Type.String(), Type.Unknown())),
  DefaultRuntime: orNull(Type.String()),
  SecurityOptions: orNull(texts),
  Architecture: orNull(Type.String()),
  OSType: orNull(Type.String()),
  OperatingSystem: orNull(Type.String()),
  MemoryLimit: orNull(Type.Boolean()),
  SwapLimit: orNull(Type.Boolean()),
  PidsLimit: orNull(Type.Boolean()),
  CpuCfsQuota: orNull(Type.Boolean()),
  /** The storage driver, and pairs of what it tells of itself. */
  Driver: orNull(Type.String()),
  DriverStatus: orNull(Type.Array(texts)),
  DockerRootDir: orNull(Type.String()),
  LiveRestoreEnabled: orNull(Type.Boolean()),
  /** Podman's service alone tells it. */
  BuildahVersion: orNull(Type.String()),
  /** Processors of its machine. */
  NCPU: orNull(Type.Integer()),
});
export type EngineInfo = Static<typeof EngineInfo>;

export const ContainerStats = Type.Object({
  cpu_stats: Type.Optional(
    Type.Object({ cpu_usage: Type.Optional(Type.Object({ total_usage: Type.Optional(Type.Number()) })) }),
  ),
  memory_stats: Type.Optional(
    Type.Object({
      usage: Type.Optional(Type.Number()),
      limit: Type.Optional(Type.Number()),
      stats: orNull(Type.Record(Type.String(), Type.Number())),
    }),
  ),
  pids_stats: Type.Optional(
    Type.Object({ current: Type.Optional(Type.Number()), limit: Type.Optional(Type.Number()) }),
  ),
});
export type ContainerStats = Static<typeof ContainerStats>;

export const ContainerEvent = Type.Object({
  Action: Type.String(),
  time: Type.Optional(Type.Number()),
  Actor: Type.Object({ ID: Type.String(), Attributes: orNull(labels) }),
});
export type ContainerEvent = Static<typeof ContainerEvent>;

/** A line of an image pull. */
export const PullLine = Type.Object({
  status: Type.Optional(Type.String()),
  id: Type.Optional(Type.String()),
  progress: Type.Optional(Type.String()),
  error: Type.Optional(Type.String()),
});
export type PullLine = Static<typeof PullLine>;
