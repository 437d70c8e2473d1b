import { mkdir, writeFile } from "node:fs/promises";
import { mustRun } from "./programs.ts";

/**
 * An authority, a certificate for 127.0.0.1 and localhost, and one for a client, as ca.pem, cert.pem and key.pem in folders of `dir`.
 * @returns the folders.
 */
export async function makeCertificates(dir: string): Promise<{ server: string; client: string }> {
  const [server, client] = [`${dir}/server`, `${dir}/client`];
  for (const folder of [server, client]) await mkdir(folder, { recursive: true, mode: 0o700 });
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  const authority = [
    "-keyout",
    `${dir}/ca.key`,
    "-out",
    `${server}/ca.pem`,
    "-days",
    "2",
    "-subj",
    "/CN=authority",
  ];
  await mustRun("openssl", ["req", "-x509", ...key, ...authority]);
  await mustRun("cp", [`${server}/ca.pem`, client]);
  for (const [folder, use] of [
    [server, "serverAuth\nsubjectAltName=DNS:localhost,IP:127.0.0.1"],
    [client, "clientAuth"],
  ] as const) {
    const request = `${folder}/request`;
    await mustRun("openssl", [
      "req",
      ...key,
      "-keyout",
      `${folder}/key.pem`,
      "-out",
      request,
      "-subj",
      "/CN=one",
    ]);
    await writeFile(`${folder}/extensions`, `extendedKeyUsage=${use}\n`);
    const by = ["-CA", `${server}/ca.pem`, "-CAkey", `${dir}/ca.key`, "-CAcreateserial", "-days", "2"];
    const ext = ["-extfile", `${folder}/extensions`];
    await mustRun("openssl", ["x509", "-req", "-in", request, ...by, "-out", `${folder}/cert.pem`, ...ext]);
  }
  return { server, client };
}
