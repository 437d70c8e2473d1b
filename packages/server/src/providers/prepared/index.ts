export { isPrepared, newPreparedId, preparedPrefix } from "./prepared-names.ts";
export { specOfNobody } from "./prepared-spec.ts";
export { PreparedStock, type Waiting } from "./prepared-stock.ts";
