export { isPrepared, newPreparedId, preparedPrefix } from "./prepared-names.ts";
export { PreparedStock, type Waiting } from "./prepared-stock.ts";
